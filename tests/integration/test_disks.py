"""Real disks that lose what was not synced, and that hang: ext4 on a loop device, which takes root."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.daemon_process import BusClient, DaemonProcess, eventually, says, serving
from support.disks import LoopDisk
from support.nats import NatsServer

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.wire.codec import encode_events
from controlplane.wire.endpoint import read_endpoint
from controlplane.wire.subjects import event_subject, heartbeat_subject

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
    for _ in range(6):
        told, found = cut_while_writing(disk, disks, "synced", random.randrange(20))
        version = int(found.split()[0])
        assert version >= told
        assert found == b"%d " % version * 20_000
    told, found = cut_while_writing(disk, disks, "unsynced", 50)
    assert found != b"%d " % told * 20_000


async def known(bus: BusClient, *numbers: int) -> None:
    """Programs of these numbers are in the daemon's ledger."""

    async def look() -> Any:
        for number in numbers:
            turn = ev.TurnQueued(program_id=f"p{number}", turn_id=f"t{number}", prompt_tokens=160)
            await bus.publish(f"test/gate/g{number}", 1, [turn])
        return {f"p{number}" for number in numbers} <= (await bus.status())["programs"].keys()

    await eventually(look, what=f"programs {numbers}")


@pytest.mark.asyncio
async def test_a_daemon_loses_no_program_by_power_cuts(disks: Callable[..., LoopDisk]) -> None:
    """NATS syncs each second; what is younger its publishers tell again. Three cuts, each after the one before."""
    disk, random = disks(), Random(2)
    for cut in range(3):
        daemon = DaemonProcess(disk.folder / "state")
        try:
            daemon.start()
            bus = await serving(daemon)
            if cut:
                await bus.status_where(lambda s, n=cut: f"p{n - 1}" in s["programs"], "what was before the cut")
            await known(bus, cut)
            path = disk.folder / "state" / "test" / "snapshot.json"
            began_s = time.monotonic()

            async def is_synced(path: Path = path, began_s: float = began_s) -> bool:
                return path.exists() and time.monotonic() - began_s > 2.5

            await eventually(is_synced, what="a snapshot, and a sync of the stream")
            await known(bus, *range(100 * cut, 100 * cut + random.randrange(30)))
            endpoint = read_endpoint("test", daemon.folder)
            assert endpoint is not None and daemon.process is not None
            for pid in (daemon.process.pid, endpoint.pid):
                os.kill(pid, signal.SIGSTOP)
            disk = disks(disk)
            for pid in (daemon.process.pid, endpoint.pid):
                os.kill(pid, signal.SIGKILL)
            daemon.process.wait()
            await bus.close()
            assert "Traceback" not in daemon.log
        finally:
            daemon.clean_up()


async def granted(bus: BusClient, number: int) -> None:
    """Ask as a gate does until the program is let in."""

    async def ask() -> bool:
        turn = ev.TurnQueued(program_id=f"p{number}", turn_id=f"t{number}", prompt_tokens=160)
        await bus.client.publish(
            event_subject("test", "gate"), encode_events(f"test/gate/g{number}", 1, [(0, turn)])
        )
        return any(isinstance(each, cmd.Admit) and each.program_id == f"p{number}" for each in bus.commands)

    await eventually(ask, what=f"grant for p{number}", every_s=0.1)


@pytest.mark.asyncio
async def test_a_disk_that_hangs_stops_no_heartbeat(disks: Callable[..., LoopDisk], tmp_path: Path) -> None:
    """Snapshot, decision log and record wait for it; gates are governed, and decisions go on."""
    disk, server = disks(), NatsServer(tmp_path / "nats")
    record = disk.folder / "run.jsonl"
    daemon = DaemonProcess(disk.folder / "state", "--nats", server.url, "--record", str(record))
    daemon.log_path = tmp_path / "daemon.log"
    try:
        daemon.start()
        bus = await BusClient.connect(server.url)
        await bus.status_where(lambda s: True, "a daemon")
        await granted(bus, 0)
        beats: list[float] = []

        async def hear(_: Any) -> None:
            beats.append(time.monotonic())

        await bus.client.subscribe(heartbeat_subject("test"), cb=hear)
        disk.hang()
        await granted(bus, 1)
        await says(daemon, "snapshot not written")
        before = len(beats)

        async def goes_on() -> bool:
            return len(beats) > before + 12

        await eventually(goes_on, what="heartbeats")
        await granted(bus, 2)
        assert max(after - at for at, after in pairwise(beats)) < 5, "less than a lease"
        disk.go_on()
        await bus.close()
        assert daemon.stop() == 0
        written = record.read_text() + (disk.folder / "state" / "test" / "decisions.jsonl").read_text()
        assert all(f'"p{number}"' in written for number in range(3)), "what waited was written"
        assert "Traceback" not in daemon.log
    finally:
        disk.go_on()
        daemon.clean_up()
        server.kill()


@pytest.mark.asyncio
async def test_a_disk_that_hangs_under_the_bus_too_costs_no_program(
    disks: Callable[..., LoopDisk], tmp_path: Path
) -> None:
    disk = disks()
    daemon = DaemonProcess(disk.folder / "state")
    daemon.log_path = tmp_path / "daemon.log"
    try:
        daemon.start()
        bus = await serving(daemon)
        await granted(bus, 0)
        disk.hang()
        await says(daemon, "keeps nothing")
        disk.go_on()
        await granted(bus, 1)
        assert (await bus.status())["programs"].keys() >= {"p0", "p1"}
        await bus.close()
        assert daemon.stop() == 0
    finally:
        disk.go_on()
        daemon.clean_up()
