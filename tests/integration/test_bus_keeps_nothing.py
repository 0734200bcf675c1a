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
from support.daemon_process import BusClient, DaemonProcess, bus_of, eventually, running, says

from controlplane.core.model import events as ev
from controlplane.transport.endpoint import read_endpoint
from controlplane.transport.subjects import (
    all_events_subject,
    command_subject,
    heartbeat_subject,
    stream_name,
)

ENGINE = "test/engine/one"
POOL = ev.PoolSampled(total_blocks=1000, free_blocks=1000, block_tokens=16)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with running(tmp_path) as process:
        yield process


async def heartbeats(bus: BusClient) -> list[float]:
    """A list that grows by the time of each heartbeat."""
    heard: list[float] = []

    async def hear(_: Any) -> None:
        heard.append(time.monotonic())

    await bus.client.subscribe(heartbeat_subject(bus.node), cb=hear)
    return heard


async def test_a_stream_that_is_deleted_or_refuses_is_set_right_again(daemon: DaemonProcess) -> None:
    full = StreamConfig(
        name=stream_name("test"),
        subjects=[all_events_subject("test"), command_subject("test")],
        discard=DiscardPolicy.NEW,
        max_msgs=1,
    )
    async with bus_of(daemon) as bus:
        await bus.publish(ENGINE, 1, [POOL])
        await bus.granted(0)
        await bus.client.jetstream().delete_stream(stream_name("test"))
        await bus.granted(1)
        assert (await bus.status())["programs"].keys() >= {"p0", "p1"}, "nothing is forgotten"
        told = daemon.log.count("nothing comes back")  # more than once where the machine is very busy
        assert told >= 1
        assert "stream is new" in daemon.log
        await bus.client.jetstream().update_stream(full)
        await bus.granted(2)
        heard = await heartbeats(bus)
        await eventually(lambda: heard, what="heartbeats")
    assert daemon.log.count("nothing comes back") > told
    assert daemon.stop() == 0


async def test_a_snapshot_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    """The draft's name is taken by a folder, which stands for a full disk here."""
    (tmp_path / "state" / "test" / ".snapshot.json.draft").mkdir(parents=True)
    with running(tmp_path, "--record", "/dev/full") as daemon:
        async with bus_of(daemon) as bus:
            await bus.granted(0)
            await says(daemon, "snapshot not written")
            await says(daemon, "record ends here")
            daemon.kill()
            daemon.start()
            await bus.status_where(lambda s: "p0" in s["programs"], "the program, from the stream")
            await bus.granted(1)
        assert daemon.log.count("snapshot not written") <= 2, "once by each daemon"
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log


async def test_a_wall_clock_that_was_set_back_holds_nobody_up(daemon: DaemonProcess) -> None:
    """As the next daemon sees it: its snapshot is of an hour from now."""
    path = daemon.folder / "test" / "snapshot.json"
    hour_ns = 3600 * 10**9
    async with bus_of(daemon) as bus:
        await bus.granted(0)
        await eventually(path.exists, what="snapshot")
        daemon.kill()
        snapshot = json.loads(path.read_bytes())
        snapshot["now_ns"] += hour_ns
        snapshot["interval_ends_ns"] += hour_ns
        path.write_text(json.dumps(snapshot))
        daemon.start()
        await bus.granted(1)
        before = (await bus.status())["status"]["now_ns"]
        await bus.status_where(lambda s: s["status"]["now_ns"] > before, "time that goes on")
    await says(daemon, "the wall clock was set back")


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


def filled(ballast: Path) -> None:
    with pytest.raises(OSError, match="No space"), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


async def test_a_disk_that_is_full_and_then_is_not(small_disk: Path) -> None:
    """State, logs and stream lie on it: gates are on their own meanwhile, and nothing has to be started anew."""
    ballast = small_disk / "ballast"
    with running(small_disk) as daemon:
        async with bus_of(daemon) as bus:
            await bus.publish(ENGINE, 1, [POOL])
            await bus.granted(0)
            filled(ballast)
            too_much = [ev.TurnAbandoned(program_id="none", turn_id=f"t{number}") for number in range(500)]
            await bus.publish("test/gate/much", 1, too_much)  # more than is left in the page that was begun
            await bus.status_where(lambda s: not s["status"]["bus_connected"], "a bus that keeps nothing")
            ballast.unlink()
            await bus.granted(1)
            after = await bus.status_where(lambda s: s["status"]["bus_connected"], "a bus that keeps again")
            assert {"p0", "p1"} <= after["programs"].keys()
        assert "no room for the stream" in daemon.log, "a smaller one was made"
        assert daemon.stop() == 0


@pytest.mark.parametrize("killed", ["nats-server", "both"])
async def test_whoever_is_killed_while_the_disk_is_full_comes_back(small_disk: Path, killed: str) -> None:
    """The server's new address and the daemon's files do not fit; what they hold is written once there is room."""
    ballast = small_disk / "ballast"
    with running(small_disk) as daemon:
        async with bus_of(daemon) as bus:
            await bus.granted(0)
            filled(ballast)
            os.kill(daemon.server_pid, signal.SIGKILL)
            if killed == "both":
                daemon.kill()
                daemon.start()
            await asyncio.sleep(3)  # in which it tries in vain
            assert not daemon.has_ended, daemon.log[-2000:]
            ballast.unlink()
            await bus.granted(1)
            now = await eventually(lambda: read_endpoint("test", daemon.folder), what="an endpoint file")
            os.kill(now.pid, 0)
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log
