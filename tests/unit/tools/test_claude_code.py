"""The command of Claude Code's hooks: one process each, which hands its input to the daemon's socket."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from controlplane.core.model.commands import StartTool
from controlplane.core.model.events import Event, ToolEnqueued, ToolStarted
from controlplane.daemon.bus.event_socket import EventSocket
from controlplane.transport.endpoint import socket_path
from controlplane.wire.codec import decode_events
from controlplane.wire.frames import Frame, pack
from engine_hooks.tools import claude_code

HOOK = [sys.executable, "-I", "-S", claude_code.__file__]
LIMIT_S = 120.0
CALL = {"session_id": "s", "tool_name": "Bash", "tool_use_id": "c", "tool_input": {"command": "cd /r && pytest -q"}}
PRE = json.dumps({**CALL, "hook_event_name": "PreToolUse"}).encode()
LONG = {**CALL, "hook_event_name": "PostToolUse", "duration_ms": 7, "tool_response": {"stdout": "é\n" * 4_000_000}}


class Bus:
    """A double of the bus: takes every batch, but the first one at the second try."""

    node = "local"

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.tries = 0
        self.came = asyncio.Event()

    async def relay_events(self, role: str, batch: bytes) -> bool:
        self.tries += 1
        if self.tries > 1:
            self.events += decode_events(batch).events
            self.came.set()
        return self.tries > 1


async def hook(folder: Path, data: bytes, **variables: str) -> tuple[int | None, bytes]:
    """One hook's exit status and what it printed."""
    environment = {"PATH": "/usr/bin:/bin", "PENSTOCK_STATE_DIR": str(folder), **variables}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = await asyncio.create_subprocess_exec(*HOOK, env=environment, **pipes)  # type: ignore[arg-type]
    printed, _ = await asyncio.wait_for(process.communicate(data), LIMIT_S)
    return process.returncode, printed


async def until(bus: Bus, events: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len(bus.events) < events:
            bus.came.clear()
            await bus.came.wait()


@pytest.fixture
def bus() -> Bus:
    return Bus()


@asynccontextmanager
async def listening(folder: Path, bus: Bus) -> AsyncIterator[EventSocket]:
    sock = EventSocket(socket_path("local", folder), bus)  # type: ignore[arg-type]
    await sock.open()
    try:
        yield sock
    finally:
        await sock.close()


async def test_hooks_are_told_on_in_one_name_and_long_ones_too(tmp_path: Path, bus: Bus) -> None:
    async with listening(tmp_path, bus):
        for data in (PRE, json.dumps(LONG).encode(), b"{", b"[]", b'{"session_id": 7}', b"", b"[" * 200_000):
            assert await hook(tmp_path, data) == (0, b"")
        await until(bus, 2)
    started, ended = bus.events
    assert (started.call_id, started.tool, started.detached) == ("c", "pytest", True)
    assert (ended.tool, ended.duration_ns, ended.ok) == ("pytest", 7_000_000, True)
    assert (started.publisher, started.sequence, ended.sequence) == (ended.publisher, 1, 2)


async def test_a_tool_starts_when_the_host_has_room(tmp_path: Path, bus: Bus) -> None:
    bus.tries = 1
    async with listening(tmp_path, bus) as sock:
        waits = asyncio.create_task(hook(tmp_path, PRE, PENSTOCK_TOOL_SLOTS="on"))
        await until(bus, 1)
        assert isinstance(asked := bus.events[0], ToolEnqueued)
        assert (asked.wants_slot, asked.detached, waits.done()) == (True, True, False)
        sock.pass_on([StartTool(program_id="s", call_id="c")])
        assert await waits == (0, b"")
        await until(bus, len(bus.events) if isinstance(bus.events[-1], ToolStarted) else len(bus.events) + 1)
        assert isinstance(bus.events[-1], ToolStarted)


async def test_a_hook_that_is_gone_waits_for_no_slot(tmp_path: Path, bus: Bus) -> None:
    """Its tool runs without; else as many waits as come and go would stay for minutes."""
    bus.tries = 1
    async with listening(tmp_path, bus) as sock:
        _, writer = await asyncio.open_unix_connection(socket_path("local", tmp_path))
        writer.write(pack(Frame.HOOK_ASKS, PRE))
        await until(bus, 1)
        assert sock.listener.open == 1
        writer.close()
        await until(bus, len(bus.events) + 1)
        while not isinstance(bus.events[-1], ToolStarted):
            await until(bus, len(bus.events) + 1)
        assert sock.listener.open == 0


async def test_without_a_daemon_or_with_one_that_does_not_answer_the_agent_goes_on(tmp_path: Path) -> None:
    async def frozen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    over = asyncio.Event()
    assert await hook(tmp_path, PRE) == (0, b"")
    server = await asyncio.start_unix_server(frozen, socket_path("local", tmp_path))
    assert await hook(tmp_path, PRE) == (0, b"")
    assert await hook(tmp_path, PRE, PENSTOCK_TOOL_SLOTS="on") == (0, b"")  # not for its patience of 300 s
    assert await hook(tmp_path, PRE, PENSTOCK_TOOLS="off") == (0, b"")
    over.set()
    server.close()


def test_no_input_at_all_is_no_error(tmp_path: Path) -> None:
    closed = f"exec {sys.executable} -I -S {claude_code.__file__} <&-"
    done = subprocess.run(["sh", "-c", closed], capture_output=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


PLACES: list[dict[str, str]] = [
    {},
    {"PENSTOCK_NODE": "n1"},
    {"PENSTOCK_STATE_DIR": "/state", "PENSTOCK_NODE": "n1"},
    {"XDG_STATE_HOME": "/xdg"},
    {"PENSTOCK_NATS_URL": "nats://127.0.0.1:4222", "PENSTOCK_STATE_DIR": "/state"},
]


@pytest.mark.parametrize("place", PLACES)
def test_it_finds_the_socket_where_the_daemon_opens_it(
    place: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("PENSTOCK_", "XDG_STATE"))]:
        monkeypatch.delenv(name)
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert claude_code._socket_path() == str(socket_path(place.get("PENSTOCK_NODE", "local")))


def test_a_url_of_a_socket_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "url").write_text("PENSTOCK_NATS_URL=unix:/run/p.sock\n")
    monkeypatch.delenv("PENSTOCK_NATS_URL", raising=False)
    monkeypatch.setenv("PENSTOCK_NATS_URL_FILE", str(tmp_path / "url"))
    assert claude_code._socket_path() == "/run/p.sock"


def test_the_settings_name_a_command_that_runs_here() -> None:
    """None is waited for but the last, behind which there is no agent."""
    done = subprocess.run([*HOOK, "--settings"], capture_output=True, timeout=LIMIT_S, check=True)
    hooks = json.loads(done.stdout)["hooks"]
    ways = {kind: entry[0]["hooks"][0] for kind, entry in hooks.items()}
    assert {way["command"] for way in ways.values()} == {" ".join(HOOK)}
    assert [kind for kind, way in ways.items() if not way.get("async")] == ["SessionEnd"]
    example = Path(claude_code.__file__).parents[2] / "examples" / "agents" / "claude_code_settings.json"
    assert json.loads(example.read_text())["hooks"].keys() == hooks.keys()
