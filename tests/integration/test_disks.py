"""Real disks that lose what was not synced, and that hang: ext4 on a loop device, which takes root."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.daemon_process import BusClient, DaemonProcess, bus_of, eventually, queued, running, says
from support.disks import LoopDisk
from support.nats import NatsServer

from controlplane.transport.subjects import heartbeat_subject

# Replaces one file for ever, and says which version is there once it has returned.
WRITES = """
import os, sys
from pathlib import Path
from controlplane.files import replace_file
if sys.argv[2] == "unsynced":
    os.fsync = lambda number: None
for version in range(1_000_000):
    replace_file(Path(sys.argv[1]), [b"%d " % version] * 20_000)
    print(version, flush=True)
"""


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Callable[..., LoopDisk]]:
    """Makes a disk, or what a power cut leaves of one."""
    made: list[LoopDisk] = []

    def make(before: LoopDisk | None = None) -> LoopDisk:
        folder = tmp_path / f"disk{len(made)}"
        try:
            disk = before.lose_power(folder) if before else LoopDisk(tmp_path / "disk.img", folder)
        except OSError as error:
            pytest.skip(f"a disk of its own takes root: {error}")
        made.append(disk)
        return disk

    yield make
    for disk in made:
        disk.close()


def cut_while_writing(disk: LoopDisk, cut: Callable[..., LoopDisk], how: str, at: int) -> tuple[int, bytes]:
    """The version that was the last to be told of, and the content after the power was lost somewhat later."""
    command = [sys.executable, "-c", WRITES, str(disk.folder / "file"), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = next(int(line) for line in writer.stdout if int(line) >= at)
        writer.send_signal(signal.SIGSTOP)
        try:
            path = cut(disk).folder / "file"
            return told, path.read_bytes() if path.exists() else b""
        finally:
            writer.kill()


def test_a_file_that_was_replaced_outlasts_a_power_cut(disks: Callable[..., LoopDisk]) -> None:
    """It is whole, and no older than the last version that was told of. Without syncs this test sees the loss."""
    disk, random = disks(), Random(1)
    for _ in range(4):
        told, found = cut_while_writing(disk, disks, "synced", random.randrange(20))
        version = int(found.split()[0])
        assert version >= told
        assert found == b"%d " % version * 20_000
    told, found = cut_while_writing(disk, disks, "unsynced", 50)
    assert found != b"%d " % told * 20_000


async def test_a_daemon_loses_no_program_by_power_cuts(disks: Callable[..., LoopDisk]) -> None:
    """NATS syncs each second; what is younger its publishers tell again. Two cuts, one after the other."""
    disk = disks()
    for cut in range(2):
        with running(disk.folder) as daemon:
            async with bus_of(daemon) as bus:
                if cut:
                    await bus.status_where(lambda s: "p0" in s["programs"], "what was before the cut")
                await bus.granted(cut)
                path = disk.folder / "state" / "test" / "snapshot.json"
                synced_s = time.monotonic() + 2.5
                await eventually(
                    lambda path=path, at_s=synced_s: path.exists() and time.monotonic() > at_s,
                    what="a snapshot, and a sync of the stream",
                )
                for number in range(100 * cut, 100 * cut + 15):
                    await bus.publish(f"test/gate/late{number}", 1, queued(f"p{number}"))
                assert daemon.process is not None
                pids = (daemon.process.pid, daemon.server_pid)
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
                disk = disks(disk)
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                daemon.process.wait()
            assert "Traceback" not in daemon.log


async def test_a_disk_that_hangs_stops_no_heartbeat(
    disks: Callable[..., LoopDisk], nats_server: NatsServer
) -> None:
    """Snapshot, decision log and record wait for it; gates are governed, and decisions go on."""
    disk = disks()
    record = disk.folder / "run.jsonl"
    daemon = DaemonProcess(disk.folder / "state", "--nats", nats_server.url, "--record", str(record))
    daemon.log_path = disk.folder.parent / "daemon.log"
    beats: list[float] = []

    async def hear(_: Any) -> None:
        beats.append(time.monotonic())

    try:
        daemon.start()
        bus = await BusClient.connect(nats_server.url)
        await bus.status()
        await bus.granted(0)
        await bus.client.subscribe(heartbeat_subject("test"), cb=hear)
        disk.hang()
        await bus.granted(1)
        await says(daemon, "snapshot not written")
        before = len(beats)
        await eventually(lambda: len(beats) > before + 12, what="heartbeats")
        await bus.granted(2)
        disk.go_on()
        await bus.close()
        assert daemon.stop() == 0
        written = record.read_text() + (disk.folder / "state" / "test" / "decisions.jsonl").read_text()
        assert all(f'"p{number}"' in written for number in range(3)), "what waited was written"
        assert "Traceback" not in daemon.log
    finally:
        disk.go_on()
        daemon.clean_up()


async def test_a_disk_that_hangs_under_the_bus_too_costs_no_program(disks: Callable[..., LoopDisk]) -> None:
    disk = disks()
    daemon = DaemonProcess(disk.folder / "state")
    daemon.log_path = disk.folder.parent / "daemon.log"
    try:
        daemon.start()
        async with bus_of(daemon) as bus:
            await bus.granted(0)
            disk.hang()
            await says(daemon, "keeps nothing")
            disk.go_on()
            await bus.granted(1)
            assert (await bus.status())["programs"].keys() >= {"p0", "p1"}
        assert daemon.stop() == 0
    finally:
        disk.go_on()
        daemon.clean_up()
