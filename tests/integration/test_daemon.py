"""The daemon as its users run it: a process, the real nats-server, bytes on the bus."""

import asyncio
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.daemon_process import (
    BusClient,
    DaemonProcess,
    bus_of,
    eventually,
    most_start_s,
    queued,
    running,
    says,
    serving,
)
from support.nats import NatsServer

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.daemon.observe.log_replay import replay_log
from controlplane.transport.endpoint import endpoint_path, read_endpoint
from controlplane.wire.codec import encode_events

GATE = "test/gate/one"
ENGINE = "test/engine/one"
POOL = ev.PoolSampled(total_blocks=1000, free_blocks=1000, block_tokens=16)


def numbered(count: int, first: int = 0) -> list[ev.Event]:
    return queued(*(f"p{number}" for number in range(first, first + count)))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """It records, and wrote no trace of an error when it has ended."""
    with running(tmp_path, "--record", str(tmp_path / "run.jsonl")) as process:
        yield process
        process.send_signal(signal.SIGCONT)
        assert process.stop() == 0
        assert "Traceback" not in process.log


async def test_kill_minus_nine_loses_nothing(daemon: DaemonProcess) -> None:
    """Window, queue and programs are the same after a kill, and the daemon is soon back."""
    async with bus_of(daemon) as bus:
        await bus.publish(ENGINE, 1, [POOL])
        await bus.publish(GATE, 1, numbered(20))
        before = await bus.status_where(
            lambda s: s["queue"] and s["status"]["window"]["limit"] > 8, "a grown window"
        )
        daemon.kill()
        # While it is away the world goes on: one more program comes, one turn of an admitted one begins.
        await bus.publish(GATE, 21, numbered(1, first=20))
        await bus.publish(ENGINE, 2, [ev.TurnSubmitted(program_id="p0", turn_id="p0.1", projected_blocks=11)])
        began = time.monotonic()
        daemon.start()
        after = await bus.status()
        assert time.monotonic() - began < most_start_s()
        assert after["status"]["window"]["window"] >= before["status"]["window"]["window"]
        doubled_twice = 4 * before["status"]["window"]["window"]  # in the intervals since
        assert after["status"]["window"]["window"] <= doubled_twice
        assert set(before["programs"]) | {"p20"} == set(after["programs"])
        assert after["programs"]["p0"]["open_turns"] == 1
        kept = [name for name in after["queue"] if name != "p20"]
        assert [name for name in before["queue"] if name in after["queue"]] == kept
        still = {name: p["status"] for name, p in before["programs"].items() if p["status"] == "active"}
        assert {name: after["programs"][name]["status"] for name in still} == still
        await bus.hears(lambda c: isinstance(c, cmd.StateRequest), "a request for every publisher's state")


async def test_a_dead_bus_comes_back(daemon: DaemonProcess) -> None:
    """The embedded server is killed: the daemon starts it again and decides on."""
    async with bus_of(daemon) as bus:
        await bus.publish(GATE, 1, numbered(1))
        await bus.grant("p0")
        killed = daemon.server_pid
        os.kill(killed, signal.SIGKILL)

        def moved() -> bool:
            now = read_endpoint("test", daemon.folder)
            return now is not None and now.pid != killed

        await eventually(moved, what="a new nats-server")
        async with bus_of(daemon) as again:
            await again.publish(GATE, 2, numbered(1, first=1))
            await again.grant("p1")


async def test_bad_batches_are_counted_and_nothing_is_lost(daemon: DaemonProcess) -> None:
    async with bus_of(daemon) as bus:
        await bus.publish(ENGINE, 1, [POOL])
        await bus.publish_bytes("gate", b"\xff\xfe no batch at all")
        whole = encode_events(GATE, 1, [(0, event) for event in numbered(4)])
        await bus.publish_bytes("gate", whole[:-7])  # truncated: lost, and the gap will show
        await bus.publish_bytes("gate", encode_events(GATE, 5, [(0, event) for event in numbered(2, first=4)]))
        await bus.hears(lambda c: isinstance(c, cmd.StateRequest) and c.publisher == GATE, "a request for the gap")
        await bus.publish_bytes("gate", whole)  # late
        await bus.publish_bytes("gate", whole)  # and twice
        status = await bus.status_where(
            lambda s: s["status"]["counts"]["duplicates"] >= 4 and len(s["programs"]) == 6, "six programs"
        )
        assert status["status"]["rejected"] == 2
        assert status["status"]["counts"]["gaps"] == 1
        for index in range(6):
            await bus.grant(f"p{index}")


async def test_a_recorded_run_replays_to_the_same_commands_and_its_end_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--record", str(tmp_path / "run.jsonl")) as daemon:
        async with bus_of(daemon) as bus:
            await bus.publish(ENGINE, 1, [POOL])
            await bus.publish(GATE, 1, numbered(12))
            await bus.status_where(lambda s: s["status"]["window"]["limit"] > 8, "a grown window")
        server = daemon.server_pid
        assert daemon.stop() == 0
    assert read_endpoint("test", daemon.folder) is None
    assert not psutil.pid_exists(server)
    report = replay_log(tmp_path / "run.jsonl")
    assert report.differences == []
    assert report.commands >= 10
    assert report.events >= 13


async def test_a_second_daemon_is_refused_and_leaves_the_first_alone(daemon: DaemonProcess, tmp_path: Path) -> None:
    """On its state, which a lock tells, and on its bus from another state."""
    async with bus_of(daemon) as bus:
        on_its_state = DaemonProcess(daemon.folder)
        on_its_state.log_path = daemon.folder / "second.log"
        on_its_bus = DaemonProcess(tmp_path / "second", "--nats", await daemon.url())
        for second in (on_its_state, on_its_bus):
            second.start()
            assert await asyncio.to_thread(second.wait) == 1
            assert "Traceback" not in second.log
        assert daemon.process is not None
        assert f"process {daemon.process.pid} holds" in on_its_state.log
        assert "already has a daemon" in on_its_bus.log
        await bus.publish(GATE, 1, numbered(1))
        await bus.grant("p0")


async def test_a_daemon_that_was_frozen_and_replaced_stands_down(tmp_path: Path, nats_server: NatsServer) -> None:
    """On another machine, so that no lock tells: the stream does."""
    first = DaemonProcess(tmp_path / "first", "--nats", nats_server.url)
    later = DaemonProcess(tmp_path / "later", "--nats", nats_server.url)
    try:
        first.start()
        bus = await BusClient.connect(nats_server.url)
        await bus.status()
        await bus.publish(ENGINE, 1, [POOL])
        await bus.publish(GATE, 1, numbered(1))
        before = await bus.grant("p0")
        first.send_signal(signal.SIGSTOP)
        later.start()
        await says(later, '"event": "up"')
        bus.commands.clear()
        await bus.publish(GATE, 2, numbered(1, 1))
        after = await bus.grant("p1")
        assert after.command_id > before.command_id
        bus.commands.clear()
        first.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(first.wait) == 1
        assert "a daemon that started later: this one stands down" in first.log
        assert all(command.command_id > after.command_id for command in bus.commands), "it said nothing more"
        await bus.publish(GATE, 3, numbered(1, 2))
        await bus.grant("p2")
        await bus.close()
    finally:
        first.clean_up()
        later.clean_up()


async def test_what_a_power_cut_leaves_keeps_no_daemon_from_starting(daemon: DaemonProcess) -> None:
    """Half a snapshot, half an endpoint file, and a server that nobody knows of and that does not end by a word."""
    async with bus_of(daemon) as bus:
        await bus.publish(GATE, 1, numbered(1))
        await bus.status_where(lambda s: "p0" in s["programs"], "a program")
    stray = daemon.server_pid
    daemon.kill()
    (daemon.folder / "test" / "snapshot.json").write_text("{")
    endpoint_path("test", daemon.folder).write_text('{"url": "nats://127.0.0.1:42')
    os.kill(stray, signal.SIGSTOP)
    daemon.log_path.write_text("")
    daemon.start()
    await says(daemon, '"event": "up"')
    bus = await serving(daemon)
    with pytest.raises(ProcessLookupError):
        os.kill(stray, 0)
    assert "p0" in (await bus.status())["programs"], "what was said is kept"
    assert "snapshot not used" in daemon.log
    await bus.close()


def test_a_url_that_nobody_listens_on(tmp_path: Path) -> None:
    with running(tmp_path, "--nats", "nats://127.0.0.1:9") as daemon:
        assert daemon.wait() == 1
    assert "no NATS server answers at nats://127.0.0.1:9" in daemon.log
    refusals = daemon.log.count("Connect call failed") + daemon.log.count("Connection refused")
    assert refusals <= 2, "said once, not at each try"
    assert "Traceback" not in daemon.log


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running(tmp_path, "--nats-port", str(port)) as daemon:
            assert daemon.wait() == 1
    assert f"port {port} is in use" in daemon.log
    assert "Traceback" not in daemon.log


async def test_a_bus_that_lost_its_stream_is_asked_anew(daemon: DaemonProcess) -> None:
    """The server comes back empty: programs stay, every publisher is asked, and what comes next is read."""
    async with bus_of(daemon) as bus:
        await bus.publish(GATE, 1, numbered(5))
        await bus.grant("p0")
        server = psutil.Process(daemon.server_pid)
        daemon.send_signal(signal.SIGSTOP)  # it would start the server again before its store is gone
        server.kill()
        # Nobody asks how it ended yet.
        await eventually(lambda: server.status() == psutil.STATUS_ZOMBIE, what="end of the server")
        shutil.rmtree(daemon.folder / "test" / "jetstream")
        daemon.send_signal(signal.SIGCONT)
        await says(daemon, "stream is new")
        bus.commands.clear()
        await bus.status_where(lambda s: len(s["programs"]) == 5, "the five programs")
        await bus.publish(GATE, 6, numbered(1, first=5))
        await bus.grant("p5")
