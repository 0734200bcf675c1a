"""Real processes that are stopped: who did not run judges nobody by that time, and who hangs is replaced."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import BusClient, DaemonProcess, eventually, says, serving

from controlplane.core import events as ev
from controlplane.wire.endpoint import read_endpoint

pytestmark = pytest.mark.asyncio
FREEZE_S = 18.0  # more than the 15 s after which a bus that says nothing is started again


async def known(bus: BusClient, number: int) -> None:
    """A program of that number is in the daemon's ledger."""
    turn = ev.TurnQueued(program_id=f"p{number}", turn_id=f"t{number}", prompt_tokens=160)

    async def look() -> Any:
        await bus.publish(f"test/gate/g{number}", 1, [turn])
        return f"p{number}" in (await bus.status())["programs"]

    await eventually(look, what=f"program p{number}")


@pytest.mark.parametrize("frozen", [("daemon",), ("daemon", "bus")], ids=["daemon", "daemon and bus"])
async def test_a_daemon_that_wakes_leaves_its_bus_alone(tmp_path: Path, frozen: tuple[str, ...]) -> None:
    daemon = DaemonProcess(tmp_path / "state")
    try:
        daemon.start()
        bus = await serving(daemon)
        await known(bus, 0)
        endpoint = read_endpoint("test", daemon.folder)
        assert endpoint is not None and daemon.process is not None
        pids = {"daemon": daemon.process.pid, "bus": endpoint.pid}
        for name in frozen:
            os.kill(pids[name], signal.SIGSTOP)
        await asyncio.sleep(FREEZE_S)
        for name in reversed(frozen):
            os.kill(pids[name], signal.SIGCONT)
        await says(daemon, "was frozen")
        await known(bus, 1)
        assert (await bus.status())["programs"].keys() >= {"p0", "p1"}
        assert read_endpoint("test", daemon.folder) == endpoint, "the same server"
        await bus.close()
        assert daemon.stop() == 0
        assert "keeps nothing" not in daemon.log
    finally:
        daemon.clean_up()


async def test_a_bus_that_hangs_is_replaced(tmp_path: Path) -> None:
    """It is never continued: SIGTERM alone does not end it."""
    daemon = DaemonProcess(tmp_path / "state")
    hung = 0
    try:
        daemon.start()
        bus = await serving(daemon)
        await known(bus, 0)
        endpoint = read_endpoint("test", daemon.folder)
        assert endpoint is not None
        hung = endpoint.pid
        os.kill(hung, signal.SIGSTOP)

        async def is_replaced() -> bool:
            now = read_endpoint("test", daemon.folder)
            return now is not None and now.pid != hung

        await eventually(is_replaced, what="another server")
        await known(bus, 1)
        assert (await bus.status())["programs"].keys() >= {"p0", "p1"}, "nothing of the stream is lost"
        await bus.close()
        assert daemon.stop() == 0
    finally:
        daemon.clean_up()
        if hung:
            with suppress(ProcessLookupError):
                os.kill(hung, signal.SIGKILL)
