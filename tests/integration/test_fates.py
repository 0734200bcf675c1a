"""Nothing but its own end ends the daemon: each of its tasks raises, messages are poisoned, and it decides on."""

import ast
import errno
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.daemon_process import NODE, BusClient, eventually, queued

from controlplane.config import Source
from controlplane.core.ledger.programs import Programs
from controlplane.core.model import events as ev
from controlplane.core.scheduling import controller
from controlplane.daemon import compose
from controlplane.daemon.process.host_probe import HostProbe
from controlplane.daemon.process.tasks import FATES, Tasks
from controlplane.transport.endpoint import read_endpoint
from controlplane.transport.subjects import heartbeat_subject
from controlplane.wire.codec import decode_heartbeat

ROOT = Path(compose.__file__).parents[2]
GATE = f"{NODE}/gate/one"
OF_A_FLEET = {
    "picker",
    "roster told",
    "engine checks",
    "preferred lead",
    "roster",
    "lease",
    "Kubernetes engines",
    "Kubernetes leader",
}
OF_A_GATE = {"upstream", "engine API"}
# What else begins a task or a thread, by file and by what it runs; and what becomes of it when it raises.
OTHERS = {
    ("daemon/compose.py", "_obey_signals"): "an error in obeying is counted; nothing else raises",
    ("daemon/shadow/replayer.py", "read"): "ends its replay, which waits for it",
    ("daemon/process/disk.py", "self._write_on"): "an error in a write is logged, and the next is done",
    ("daemon/process/logs.py", "self._write_on"): "what fails is left out; another begins with the next line",
    ("daemon/status/health_watch.py", "self._ask_disk"): "ends the health task, which begins anew",
    ("daemon/process/reload.py", "_set_when_cancelled"): "does not raise",
    ("fleet/checkup.py", "self._knock"): "ends the engine checks, which begin anew",
    ("fleet/checkup.py", "self._ask_for_health"): "ends the engine checks, which begin anew",
    ("fleet/leader.py", "checkup.run"): "ends the engine checks, which begin anew",
    ("fleet/ext_proc.py", "self._set_health"): "sets three values in memory",
    ("fleet/pluginless.py", "asyncio.to_thread"): "closes an emitter, which raises nothing",
    ("fleet/engine_turn.py", "self._api.before_turn"): "ends its request, which waits for it",
    ("fleet/outside.py", "_replace_frozen"): "ends the gate, which its supervisor starts again",
    ("fleet/outside.py", "_drain"): "ends the gate, which is to end",
    ("fleet/outside.py", "_tell"): "ends the gate, which its supervisor starts again",
    ("fleet/outside.py", "work"): "ends the gate: a part of it cannot be started",
    ("fleet/outside_picker.py", "self._tell_if_nobody_decides"): "ends the picker, which is started again",
    ("fleet/watchdog.py", "self._watch"): "ends the process where its loop hangs: it is what is fatal",
    ("gate/asgi.py", "self._receive"): "ends its request, which waits for it",
    ("gate/middleware.py", "self._gate.enter"): "ends its request, which waits for it",
    ("emit/preparation.py", "self._run"): "what its caller's code raises is the outcome",
    ("engine_hooks/tools/resources/sandboxes.py", "self._run"): "goes on after an error",
    ("engine_hooks/tools/skyrl.py", "guard.run"): "an error is logged; engines' gates see what the trainer asks",
    ("emit/publisher_loop.py", "delivered"): "ends the connection, which is made anew",
    ("emit/runtime.py", "pump.run"): "begins anew after an error",
    ("emit/socket_client.py", "self._read"): "ends the connection, which is made anew",
    ("transport/listener.py", "self._begin"): "ends its connection",
    ("transport/delivery.py", "client.flush"): "ends the delivery, which waits for it",
    ("engine_hooks/engine/board.py", "_post"): "goes on after an error",
    ("engine_hooks/llamacpp/api.py", "work"): "ends the engine's API, which begins anew",
    ("engine_hooks/tools/mcp_http_proxy.py", "self._notify"): "a notice is lost",
    ("engine_hooks/tools/mcp_proxy.py", "self._feed"): "its parts are guarded; it ends with its pipe",
    ("engine_hooks/tools/mcp_proxy.py", "self._watch"): "its parts are guarded",
    ("engine_hooks/tools/mcp_proxy.py", "self._notify"): "a notice is lost",
    ("engine_hooks/vllm/attached.py", "self._keep_time"): "its parts are guarded",
}


def begun() -> set[tuple[str, str]]:
    """Where tasks and threads begin in what runs beside engines and agents, but for ``Tasks.keep``."""
    found = set()
    rooms = [
        ROOT / "controlplane" / room
        for room in ("daemon", "fleet", "gate", "emit", "transport", "wire", "config", "core")
    ]
    for path in [path for room in (*rooms, ROOT / "engine_hooks") for path in room.rglob("*.py")]:
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            target = next((each.value for each in call.keywords if each.arg == "target"), None)
            if name in ("start_soon", "create_task", "ensure_future") or ast.unparse(call.func) == "tasks.start":
                target = call.args[0]
            if target is not None:
                run = ast.unparse(target.func if isinstance(target, ast.Call) else target)
                if not run.endswith("keep"):
                    found.add((str(path.relative_to(ROOT)).removeprefix("controlplane/"), run))
    return found


def test_what_becomes_of_each_task_is_written_down() -> None:
    assert begun() == OTHERS.keys()
    assert set(FATES) >= OF_A_FLEET | OF_A_GATE


ERRORS = (OSError(errno.EMFILE, "Too many open files"), RecursionError("too deep"), MemoryError())


class Raising:
    """Has each task raise as soon as it begins, and again when it has run for a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.raised: Counter[str] = Counter()
        keep = Tasks.keep

        async def kept(tasks: Tasks, name: str, work: Callable[[], Awaitable[Any]]) -> None:
            await keep(tasks, name, lambda: self.run(name, work))

        monkeypatch.setattr(Tasks, "keep", kept)

    async def run(self, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        begun = self.raised[name]
        if begun < len(ERRORS):
            if begun:
                with anyio.move_on_after(0.3):
                    await work()
            self.raised[name] += 1
            raise ERRORS[begun]
        await work()


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[BusClient]:
    """A daemon in this process, and a client of its bus."""
    off = {"http.listen": "off", "api.listen": "off", "heartbeat_s": 0.1, "snapshot_s": 0.2, "node": NODE}
    source = Source(options={**off, "state_dir": str(folder), **options})
    async with anyio.create_task_group() as group:
        group.start_soon(compose._serve, source, None, 0)
        endpoint = await eventually(lambda: read_endpoint(NODE, folder), what="an endpoint")
        bus = await BusClient.connect(endpoint.url)
        await bus.status()
        yield bus
        await bus.close()
        group.cancel_scope.cancel()


async def grants(bus: BusClient, number: int) -> None:
    await bus.publish(GATE, number, queued(f"p{number}"))
    await bus.grant(f"p{number}")


async def test_each_task_raises_and_it_decides_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raising, ours = Raising(monkeypatch), FATES.keys() - OF_A_FLEET - OF_A_GATE
    async with serving(tmp_path, **{"otlp.http": "127.0.0.1:0"}) as bus:
        await grants(bus, 1)
        await eventually(lambda: all(raising.raised[name] == len(ERRORS) for name in ours), what="all errors")
        await grants(bus, 2)
        failures = {each["what"]: each for each in (await bus.status())["status"]["failures"]}
        assert {name: failures[name]["count"] for name in ours} == dict.fromkeys(ours, len(ERRORS))
        assert all("MemoryError" in failures[name]["error"] for name in ours)


async def test_each_task_of_a_fleet_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names are those that are kept."""
    raising, done = Raising(monkeypatch), []

    async def work() -> None:
        done.append(True)

    await Tasks().keep("picker", work)
    assert (len(done), raising.raised["picker"]) == (len(ERRORS), len(ERRORS))
    texts = [
        (ROOT / "controlplane/fleet" / f"{part}.py").read_text()
        for part in ("compose", "in_cluster", "leader", "outside_picker")
    ]
    for name in OF_A_FLEET | OF_A_GATE:
        assert any(f'"{name}"' in text for text in texts)


async def test_it_decides_without_a_probe_of_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc/stat cannot be opened while somebody has taken all files; its heartbeats go by its own samples."""

    def sample(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files: '/proc/stat'")

    monkeypatch.setattr(HostProbe, "sample", sample)
    async with serving(tmp_path, **{"host.probe_interval_s": 0.2}) as bus:
        for number in range(1, 4):
            await grants(bus, number)
            await anyio.sleep(0.5)
        assert (await bus.status())["status"]["bus_connected"]


async def test_a_message_that_cannot_be_applied_is_set_aside_with_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the second time, when it is read from the stream again; and what it left half done is mended."""
    queue_more = Programs.queue_more

    def poisoned(self: Programs, root: Any, turns: int, blocks: int) -> None:
        if root.program_id == "poison":
            root.queued_turns += 7  # half of it
            raise KeyError("what nobody expects")
        queue_more(self, root, turns, blocks)

    monkeypatch.setattr(Programs, "queue_more", poisoned)
    poison, folder = ev.TurnQueued(program_id="poison", turn_id="x"), tmp_path / NODE / "set-aside"
    for life in range(2):
        async with serving(tmp_path) as bus:
            if not life:
                await grants(bus, 1)
                await bus.publish(GATE, 2, [poison, *queued("p3")])
                await bus.grant("p3")
            found = await bus.status_where(_is_set_aside, "a message set aside, and no trace of it")
            assert "KeyError" in found["status"]["last_set_aside"]
            assert {"p1", "p3"} <= found["programs"].keys()
            await grants(bus, 10 + life)
            await eventually(lambda: any(folder.glob("*.message")), what="its bytes on disk")
        (tmp_path / NODE / "snapshot.json").unlink()  # the stream is read from its beginning
    assert b"poison" in (folder / "1.message").read_bytes()


async def test_while_ticks_raise_gates_hear_no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = False
    sense = controller.update_parent_etas

    def update_parent_etas(*given: Any) -> Any:
        if fails:
            raise RecursionError("as deep as a client wants")
        return sense(*given)

    monkeypatch.setattr(controller, "update_parent_etas", update_parent_etas)
    async with serving(tmp_path, **{"control.interval_s": 0.2}) as bus:
        beats: list[Any] = []

        async def beat(message: Any) -> None:
            beats.append(decode_heartbeat(message.data))

        await bus.client.subscribe(heartbeat_subject(NODE), cb=beat)
        await grants(bus, 1)
        await eventually(lambda: len(beats) > 2, what="heartbeats")
        fails = True

        async def none_came() -> bool:
            before = len(beats)
            await anyio.sleep(1)
            return len(beats) == before

        await eventually(none_came, what="a second without a heartbeat")
        status = (await bus.status())["status"]
        (failed,) = [each for each in status["failures"] if each["what"] == "ticks"]
        assert failed["failing"]
        assert "RecursionError" in failed["error"]
        assert "decisions_failing" in [each["name"] for each in status["findings"]]
        fails = False
        count = len(beats)
        await eventually(lambda: len(beats) > count, what="heartbeats again")
        await grants(bus, 2)


def _is_set_aside(found: dict[str, Any]) -> bool:
    agrees = all(each["queued_turns"] in (0, 1) for each in found["programs"].values())
    return agrees and found["status"]["set_aside"] >= 1
