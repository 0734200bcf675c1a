"""A bus that can be reached and keeps nothing: gates are told by silence, and the daemon heals what it can."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import DiscardPolicy, StreamConfig
from support.daemon_process import BusClient, DaemonProcess, eventually, says, serving

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.wire.codec import encode_events
from controlplane.wire.endpoint import read_endpoint
from controlplane.wire.subjects import (
    all_events_subject,
    command_subject,
    event_subject,
    heartbeat_subject,
    stream_name,
)

pytestmark = pytest.mark.asyncio

GATE = "test/gate/one"
ENGINE = "test/engine/one"
POOL = ev.PoolSampled(total_blocks=1000, free_blocks=1000, block_tokens=16)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    process = DaemonProcess(tmp_path / "state")
    yield process
    process.clean_up()


def turn(number: int) -> ev.Event:
    return ev.TurnQueued(program_id=f"p{number}", turn_id=f"t{number}", prompt_tokens=160)


async def heartbeats(bus: BusClient) -> list[float]:
    """A list that grows by the time of each heartbeat."""
    heard: list[float] = []

    async def hear(_: Any) -> None:
        heard.append(time.monotonic())

    await bus.client.subscribe(heartbeat_subject(bus.node), cb=hear)
    return heard


async def quiet(heard: list[float], for_s: float) -> None:
    """Return once no heartbeat came for so long."""

    async def look() -> bool:
        return bool(heard) and time.monotonic() - heard[-1] >= for_s

    await eventually(look, what=f"silence of {for_s} s")


async def granted(bus: BusClient, number: int) -> None:
    """Ask as a gate does, again and again, until the program is let in."""

    async def ask() -> bool:
        batch = encode_events(f"test/gate/asks{number}", 1, [(0, turn(number))])
        await bus.client.publish(event_subject(bus.node, "gate"), batch)
        await asyncio.sleep(0.1)
        return any(isinstance(each, cmd.Admit) and each.program_id == f"p{number}" for each in bus.commands)

    await eventually(ask, what=f"grant for p{number}")


async def test_a_stream_that_is_deleted_while_the_daemon_runs_is_made_again(daemon: DaemonProcess) -> None:
    daemon.start()
    bus = await serving(daemon)
    await bus.publish(ENGINE, 1, [POOL])
    await granted(bus, 0)
    await bus.client.jetstream().delete_stream(stream_name("test"))
    await granted(bus, 1)
    assert (await bus.status())["programs"].keys() >= {"p0", "p1"}, "nothing is forgotten"
    heard = await heartbeats(bus)
    await eventually(lambda: _now(heard), what="heartbeats")
    await bus.close()
    assert "nothing comes back" in daemon.log
    assert "stream is new" in daemon.log
    assert daemon.stop() == 0


async def test_a_stream_that_refuses_is_set_right_again(daemon: DaemonProcess) -> None:
    daemon.start()
    bus = await serving(daemon)
    await granted(bus, 0)
    full = StreamConfig(
        name=stream_name("test"),
        subjects=[all_events_subject("test"), command_subject("test")],
        discard=DiscardPolicy.NEW,
        max_msgs=1,
    )
    await bus.client.jetstream().update_stream(full)
    await granted(bus, 1)
    await bus.close()
    assert "nothing comes back" in daemon.log
    assert daemon.stop() == 0


async def _now(value: Any) -> Any:
    return value


async def test_a_snapshot_that_cannot_be_written_ends_nothing(daemon: DaemonProcess) -> None:
    """The draft's name is taken by a folder, which stands for a full disk here."""
    (daemon.folder / "test" / ".snapshot.json.draft").mkdir(parents=True)

    daemon.start()
    bus = await serving(daemon)
    await granted(bus, 0)
    await says(daemon, "snapshot not written")
    daemon.kill()
    daemon.start()
    after = await bus.status_where(lambda s: "p0" in s["programs"], "the program, from the stream")
    assert after["programs"]["p0"]["status"] == "active"
    await granted(bus, 1)
    await bus.close()
    assert daemon.log.count("snapshot not written") <= 2, "once by each daemon"
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log


async def test_a_wall_clock_that_was_set_back_holds_nobody_up(daemon: DaemonProcess) -> None:
    """As the next daemon sees it: its snapshot is of an hour from now."""
    path = daemon.folder / "test" / "snapshot.json"
    hour_ns = 3600 * 10**9

    daemon.start()
    bus = await serving(daemon)
    await granted(bus, 0)
    await eventually(lambda: _now(path.exists()), what="snapshot")
    daemon.kill()
    snapshot = json.loads(path.read_bytes())
    snapshot["now_ns"] += hour_ns
    snapshot["interval_ends_ns"] += hour_ns
    path.write_text(json.dumps(snapshot))
    daemon.start()
    await granted(bus, 1)
    before = (await bus.status())["status"]["now_ns"]
    await bus.status_where(lambda s: s["status"]["now_ns"] > before, "time that goes on")
    await bus.close()
    await says(daemon, "the wall clock was set back")
    assert daemon.stop() == 0


async def test_a_record_on_a_full_disk_ends_and_the_daemon_goes_on(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "state", "--record", "/dev/full")

    try:
        daemon.start()
        bus = await serving(daemon)
        await granted(bus, 0)
        await says(daemon, "record ends here")
        await granted(bus, 1)
        await bus.close()
        assert daemon.stop() == 0
    finally:
        daemon.clean_up()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MB; who may not mount one skips the test."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], capture_output=True)
    if made.returncode:
        pytest.skip("mounting a small disk takes root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


async def test_a_disk_that_is_full_and_then_is_not(small_disk: Path) -> None:
    """State, logs and stream lie on it: gates are on their own meanwhile, and nothing has to be started anew."""
    daemon = DaemonProcess(small_disk / "state")
    ballast = small_disk / "ballast"

    try:
        daemon.start()
        bus = await serving(daemon)
        await bus.publish(ENGINE, 1, [POOL])
        await granted(bus, 0)
        heard = await heartbeats(bus)
        with pytest.raises(OSError, match="No space"), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))
        too_much = [ev.TurnAbandoned(program_id="none", turn_id=f"t{number}") for number in range(500)]
        await bus.publish("test/gate/much", 1, too_much)  # more than is left in the page that was begun
        await quiet(heard, 1.0)
        assert not (await bus.status())["status"]["bus_connected"]
        ballast.unlink()
        await granted(bus, 1)
        after = await bus.status_where(lambda s: s["status"]["bus_connected"], "a bus that keeps again")
        assert {"p0", "p1"} <= after["programs"].keys()
        await bus.close()
        assert "no room for the stream" in daemon.log, "a smaller one was made"
        assert daemon.stop() == 0
    finally:
        daemon.clean_up()


@pytest.mark.parametrize("killed", ["nats-server", "the daemon", "both"])
async def test_whoever_is_killed_while_the_disk_is_full_comes_back(small_disk: Path, killed: str) -> None:
    """The server's new address and the daemon's files do not fit; what they hold is written once there is room."""
    daemon = DaemonProcess(small_disk / "state")
    ballast = small_disk / "ballast"

    try:
        daemon.start()
        bus = await serving(daemon)
        await granted(bus, 0)
        endpoint = read_endpoint("test", daemon.folder)
        assert endpoint is not None
        with pytest.raises(OSError, match="No space"), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))
        if killed != "the daemon":
            os.kill(endpoint.pid, signal.SIGKILL)
        if killed != "nats-server":
            daemon.kill()
            daemon.start()
        await asyncio.sleep(3)  # in which it tries in vain
        assert not daemon.has_ended, daemon.log[-2000:]
        ballast.unlink()
        await granted(bus, 1)
        now = await eventually(lambda: _now(read_endpoint("test", daemon.folder)), what="an endpoint file")
        os.kill(now.pid, 0)
        await bus.close()
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log
    finally:
        daemon.clean_up()
