"""What systemd hears of the daemon, on a socket like its own."""

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from controlplane.daemon.process.sd_notify import Supervisor


async def told(name: str, listener: socket.socket) -> list[str]:
    """What a supervisor with that socket's name hears until its daemon ends."""
    listener.settimeout(60)
    telling = asyncio.create_task(Supervisor({"NOTIFY_SOCKET": name}).keep_notifying(lambda: "3 programs"))
    heard = [await asyncio.to_thread(listener.recv, 4096) for _ in range(2)]
    telling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await telling
    return [message.decode() for message in [*heard, listener.recv(4096)]]


@pytest.mark.parametrize("abstract", [False, True], ids=["a file", "abstract"])
async def test_it_hears_that_the_daemon_is_ready_alive_and_ends(abstract: bool, tmp_path: Path) -> None:
    name = f"@{tmp_path.name}-notify" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name[1:] if abstract else name)
        heard = await told(name, listener)
    assert heard == ["READY=1", "WATCHDOG=1\nSTATUS=3 programs", "STOPPING=1"]


async def test_one_that_is_gone_does_no_harm(tmp_path: Path) -> None:
    await asyncio.wait_for(Supervisor({}).keep_notifying(lambda: "-"), 60)  # nor is nobody told
    with contextlib.suppress(TimeoutError):
        missing = {"NOTIFY_SOCKET": str(tmp_path / "gone")}
        await asyncio.wait_for(Supervisor(missing).keep_notifying(lambda: "-"), 0.1)
