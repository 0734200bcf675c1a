"""The daemon as its users run it: a process, the real nats-server, bytes on the bus."""

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from support.daemon_process import BusClient, DaemonProcess, eventually, most_start_s, says, serving
from support.nats import NatsServer

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.shell.log_replay import replay_log
from controlplane.wire.codec import encode_events
from controlplane.wire.endpoint import endpoint_path, read_endpoint
from controlplane.wire.nats_url import shown

GATE = "test/gate/one"
ENGINE = "test/engine/one"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    process = DaemonProcess(tmp_path / "state")
    yield process
    process.clean_up()


def queued(count: int, first: int = 0) -> list[ev.Event]:
    return [
        ev.TurnQueued(program_id=f"p{i}", turn_id=f"t{i}", prompt_tokens=160) for i in range(first, first + count)
    ]


POOL = ev.PoolSampled(total_blocks=1000, free_blocks=1000, block_tokens=16)


@pytest.mark.asyncio
async def test_serves_and_shuts_down_cleanly(daemon: DaemonProcess) -> None:
    daemon.start()
    bus = await serving(daemon)
    await bus.publish(ENGINE, 1, [POOL])
    await bus.publish(GATE, 1, queued(3))
    for name in ("p0", "p1", "p2"):
        await bus.hears(lambda c, n=name: isinstance(c, cmd.Admit) and c.program_id == n, f"grant for {name}")
    await bus.close()
    endpoint = read_endpoint("test", daemon.folder)
    assert endpoint is not None
    assert daemon.stop() == 0
    assert read_endpoint("test", daemon.folder) is None
    with pytest.raises(ProcessLookupError):
        os.kill(endpoint.pid, 0)
    assert "Traceback" not in daemon.log


@pytest.mark.asyncio
async def test_kill_minus_nine_loses_nothing(daemon: DaemonProcess) -> None:
    """Window, queue and programs are the same after a kill, and the daemon is soon back."""
    daemon.start()
    bus = await serving(daemon)
    await bus.publish(ENGINE, 1, [POOL])
    await bus.publish(GATE, 1, queued(20))
    before = await bus.status_where(lambda s: s["queue"] and s["status"]["window"]["limit"] > 8, "a grown window")
    daemon.kill()
    # While it is away the world goes on: one more program comes, one turn of an admitted one begins.
    await bus.publish(GATE, 21, queued(1, first=20))
    await bus.publish(ENGINE, 2, [ev.TurnSubmitted(program_id="p0", turn_id="t0", projected_blocks=11)])
    began = time.monotonic()
    daemon.start()
    after = await bus.status()
    assert time.monotonic() - began < most_start_s()
    assert after["status"]["window"]["window"] >= before["status"]["window"]["window"]
    doubled_twice = 4 * before["status"]["window"]["window"]  # in the intervals since
    assert after["status"]["window"]["window"] <= doubled_twice
    assert set(before["programs"]) | {"p20"} == set(after["programs"])
    assert after["programs"]["p0"]["open_turns"] == 1
    assert [name for name in before["queue"] if name in after["queue"]] == [
        name for name in after["queue"] if name != "p20"
    ]
    still = {name: p["status"] for name, p in before["programs"].items() if p["status"] == "active"}
    assert {name: after["programs"][name]["status"] for name in still} == still
    await bus.hears(lambda c: isinstance(c, cmd.StateRequest), "a request for every publisher's state")
    await bus.close()
    assert daemon.stop() == 0


@pytest.mark.asyncio
async def test_a_dead_bus_comes_back(daemon: DaemonProcess) -> None:
    """The embedded server is killed: the daemon starts it again and decides on."""
    daemon.start()
    bus = await serving(daemon)
    await bus.publish(GATE, 1, queued(1))
    await bus.hears(lambda c: isinstance(c, cmd.Admit), "a grant")
    endpoint = read_endpoint("test", daemon.folder)
    assert endpoint is not None
    os.kill(endpoint.pid, signal.SIGKILL)

    async def moved() -> bool:
        now = read_endpoint("test", daemon.folder)
        return now is not None and now.pid != endpoint.pid

    await eventually(moved, what="a new nats-server")
    again = await BusClient.connect(await daemon.url())
    await again.status()
    await again.publish(GATE, 2, queued(1, first=1))
    await again.hears(lambda c: isinstance(c, cmd.Admit) and c.program_id == "p1", "a grant after the restart")
    await bus.close()
    await again.close()
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log


@pytest.mark.asyncio
async def test_bad_batches_are_counted_and_nothing_is_lost(daemon: DaemonProcess) -> None:
    daemon.start()
    bus = await serving(daemon)
    await bus.publish(ENGINE, 1, [POOL])
    await bus.publish_bytes("gate", b"\xff\xfe no batch at all")
    whole = encode_events(GATE, 1, [(0, event) for event in queued(4)])
    await bus.publish_bytes("gate", whole[:-7])  # truncated: lost, and the gap will show
    await bus.publish_bytes("gate", encode_events(GATE, 5, [(0, event) for event in queued(2, first=4)]))
    await bus.hears(lambda c: isinstance(c, cmd.StateRequest) and c.publisher == GATE, "a request for the gap")
    await bus.publish_bytes("gate", whole)  # late
    await bus.publish_bytes("gate", whole)  # and twice
    status = await bus.status_where(
        lambda s: s["status"]["counts"]["duplicates"] >= 4 and len(s["programs"]) == 6, "six programs"
    )
    assert status["status"]["rejected"] == 2
    assert status["status"]["counts"]["gaps"] == 1
    for index in range(6):
        await bus.hears(
            lambda c, i=index: isinstance(c, cmd.Admit) and c.program_id == f"p{i}", f"a grant for p{index}"
        )
    await bus.close()
    assert daemon.stop() == 0


@pytest.mark.asyncio
async def test_an_unusable_snapshot_is_told_and_the_stream_serves_instead(daemon: DaemonProcess) -> None:
    daemon.start()
    bus = await serving(daemon)
    await bus.publish(GATE, 1, queued(3))
    await bus.status_where(lambda s: len(s["programs"]) == 3, "three programs")
    daemon.kill()
    (daemon.folder / "test" / "snapshot.json").write_text("{")
    daemon.start()
    after = await bus.status()
    assert len(after["programs"]) == 3
    await bus.close()
    assert daemon.stop() == 0
    assert "snapshot not used" in daemon.log


@pytest.mark.asyncio
async def test_a_recorded_run_replays_to_the_same_commands(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    daemon = DaemonProcess(tmp_path / "state", "--record", str(path))

    try:
        daemon.start()
        bus = await serving(daemon)
        await bus.publish(ENGINE, 1, [POOL])
        await bus.publish(GATE, 1, queued(12))
        await bus.status_where(lambda s: s["status"]["window"]["limit"] > 8, "a grown window")
        await bus.close()
        assert daemon.stop() == 0
    finally:
        daemon.clean_up()
    report = replay_log(path)
    assert report.differences == []
    assert report.commands >= 10
    assert report.events >= 13


@pytest.mark.asyncio
async def test_two_daemons_on_one_node_are_refused(daemon: DaemonProcess, tmp_path: Path) -> None:
    daemon.start()
    url = await daemon.url()
    bus = await BusClient.connect(url)
    await bus.status()
    await bus.close()
    second = DaemonProcess(tmp_path / "second", "--nats", url)
    second.start()
    assert second.wait() == 1
    assert "already has a daemon" in second.log
    assert "Traceback" not in second.log


@pytest.mark.asyncio
async def test_a_daemon_that_was_frozen_and_replaced_stands_down(tmp_path: Path) -> None:
    """On another machine, so that no lock tells: the stream does."""
    nats_server = NatsServer(tmp_path / "nats")
    first = DaemonProcess(tmp_path / "first", "--nats", nats_server.url)
    later = DaemonProcess(tmp_path / "later", "--nats", nats_server.url)

    try:
        first.start()
        bus = await BusClient.connect(nats_server.url)
        await bus.status()
        await bus.publish(ENGINE, 1, [POOL])
        await bus.publish(GATE, 1, queued(1))
        before = await bus.hears(lambda c: isinstance(c, cmd.Admit) and c.program_id == "p0", "grant for p0")
        assert first.process is not None
        first.process.send_signal(signal.SIGSTOP)
        later.start()
        await says(later, '"event": "up"')
        bus.commands.clear()
        await bus.publish(GATE, 2, queued(1, 1))
        after = await bus.hears(lambda c: isinstance(c, cmd.Admit) and c.program_id == "p1", "grant for p1")
        assert after.command_id > before.command_id
        bus.commands.clear()
        first.process.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(first.wait) == 1
        assert "a daemon that started later: this one stands down" in first.log
        assert all(command.command_id > after.command_id for command in bus.commands), "it said nothing more"
        await bus.publish(GATE, 3, queued(1, 2))
        await bus.hears(lambda c: isinstance(c, cmd.Admit) and c.program_id == "p2", "grant for p2")
        await bus.close()
    finally:
        first.clean_up()
        later.clean_up()
        nats_server.kill()


@pytest.mark.asyncio
@pytest.mark.parametrize("frozen", [False, True])
async def test_a_server_that_nobody_knows_of_does_not_share_the_store(daemon: DaemonProcess, frozen: bool) -> None:
    """The daemon was killed after it had started its server, and before it had said where that listens."""
    daemon.start()
    bus = await serving(daemon)
    await bus.publish(GATE, 1, queued(1))
    await bus.close()
    stray = read_endpoint("test", daemon.folder)
    assert stray is not None
    daemon.kill()
    endpoint_path("test", daemon.folder).unlink()
    if frozen:
        os.kill(stray.pid, signal.SIGSTOP)
    daemon.start()
    bus = await serving(daemon)
    with pytest.raises(ProcessLookupError):
        os.kill(stray.pid, 0)
    assert "p0" in (await bus.status())["programs"], "what was said is kept"
    await bus.close()


@pytest.mark.asyncio
async def test_a_second_daemon_on_the_same_state_leaves_the_first_alone(daemon: DaemonProcess) -> None:
    second = DaemonProcess(daemon.folder)
    second.log_path = daemon.folder / "second.log"

    daemon.start()
    bus = await serving(daemon)
    second.start()
    assert await asyncio.to_thread(second.wait) == 1
    assert daemon.process is not None
    assert f"process {daemon.process.pid} holds" in second.log
    await bus.publish(GATE, 1, queued(1))
    await bus.hears(lambda c: isinstance(c, cmd.Admit), "a grant, over the first one's server")
    await bus.close()
    assert "Traceback" not in second.log
    assert daemon.stop() == 0


def test_a_url_that_nobody_listens_on(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "state", "--nats", "nats://127.0.0.1:9")
    daemon.start()
    assert daemon.wait() == 1
    assert "no NATS server answers at nats://127.0.0.1:9" in daemon.log
    assert daemon.log.count("Connect call failed") + daemon.log.count("Connection refused") <= 2, (
        "said once, not at each try"
    )
    assert "Traceback" not in daemon.log


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        daemon = DaemonProcess(tmp_path / "state", "--nats-port", str(port))
        daemon.start()
        assert daemon.wait() == 1
    assert f"port {port} is in use" in daemon.log
    assert "Traceback" not in daemon.log


@pytest.mark.asyncio
async def test_a_bus_that_lost_its_stream_is_asked_anew(daemon: DaemonProcess) -> None:
    """The server comes back empty: programs stay, every publisher is asked, and what comes next is read."""
    daemon.start()
    bus = await serving(daemon)
    await bus.publish(GATE, 1, queued(5))
    await bus.hears(lambda c: isinstance(c, cmd.Admit), "a grant")
    endpoint = read_endpoint("test", daemon.folder)
    assert endpoint is not None
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)  # it would start the server again before its store is gone
    os.kill(endpoint.pid, signal.SIGKILL)

    async def is_dead() -> bool:
        return psutil.Process(endpoint.pid).status() == psutil.STATUS_ZOMBIE  # nobody asks how it ended yet

    await eventually(is_dead, what="end of the server")
    shutil.rmtree(daemon.folder / "test" / "jetstream")
    daemon.process.send_signal(signal.SIGCONT)
    await says(daemon, "stream is new")
    bus.commands.clear()
    await bus.status_where(lambda s: len(s["programs"]) == 5, "the five programs")
    await bus.publish(GATE, 6, queued(1, first=5))
    await bus.hears(lambda c: isinstance(c, cmd.Admit) and c.program_id == "p5", "a grant after the loss")
    await bus.close()
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log


@pytest.mark.asyncio
async def test_the_embedded_server_talks_to_nobody_without_its_password(daemon: DaemonProcess) -> None:
    """Any process of the machine can reach the port; whoever cannot read the endpoint file can do nothing there."""

    async def answer(url: str) -> bytes:
        """What the server says to who connects with what the URL holds, and asks whether it is there."""
        told = urlsplit(url)
        reader, writer = await asyncio.open_connection(told.hostname, told.port)
        await reader.readline()
        said = {"verbose": False, "user": told.username or "", "pass": told.password or ""}
        writer.write(f"CONNECT {json.dumps(said)}\r\nPING\r\n".encode())
        line = await reader.readline()
        writer.close()
        return line.strip()

    daemon.start()
    bus = await serving(daemon)
    url = await daemon.url()
    assert await answer(url) == b"PONG"
    for other in (shown(url), url.replace("-daemon:", "-daemon:x")):
        assert await answer(other) == b"-ERR 'Authorization Violation'"
    secret = str(urlsplit(url).password)
    settings = daemon.folder / daemon.node / "nats-server.conf"
    assert secret in settings.read_text()
    for path in (settings, endpoint_path(daemon.node, daemon.folder)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret not in daemon.log
    await bus.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("left", ["", '{"url": "nats://127.0.0.1:42', '{"url": "nats://nobody:x"}'])
async def test_half_an_endpoint_file_keeps_no_daemon_from_starting(daemon: DaemonProcess, left: str) -> None:
    """As a machine leaves it that lost its power."""
    path = endpoint_path("test", daemon.folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(left)
    daemon.start()
    await says(daemon, '"up"')
    bus = await serving(daemon)
    await bus.close()
    assert daemon.stop() == 0
