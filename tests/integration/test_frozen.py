"""Real processes that are stopped: who did not run judges nobody by that time, and who hangs is replaced."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

from support.daemon_process import bus_of, eventually, running, says

from controlplane.transport.endpoint import read_endpoint

FREEZE_S = 18.0  # more than the 15 s after which a bus that says nothing is started again


async def test_a_daemon_that_wakes_leaves_its_bus_alone(tmp_path: Path) -> None:
    """Both were frozen, as a laptop's are that was closed."""
    with running(tmp_path) as daemon:
        async with bus_of(daemon) as bus:
            await bus.granted(0)
            endpoint = read_endpoint("test", daemon.folder)
            daemon.send_signal(signal.SIGSTOP)
            os.kill(daemon.server_pid, signal.SIGSTOP)
            await asyncio.sleep(FREEZE_S)
            os.kill(daemon.server_pid, signal.SIGCONT)
            daemon.send_signal(signal.SIGCONT)
            await says(daemon, "was frozen")
            await bus.granted(1)
            assert (await bus.status())["programs"].keys() >= {"p0", "p1"}
            assert read_endpoint("test", daemon.folder) == endpoint, "the same server"
        assert daemon.stop() == 0
        assert "keeps nothing" not in daemon.log


async def test_a_bus_that_hangs_is_replaced(tmp_path: Path) -> None:
    """It is never continued: SIGTERM alone does not end it."""
    with running(tmp_path) as daemon:
        async with bus_of(daemon) as bus:
            await bus.granted(0)
            hung = daemon.server_pid
            os.kill(hung, signal.SIGSTOP)
            try:

                def is_replaced() -> bool:
                    now = read_endpoint("test", daemon.folder)
                    return now is not None and now.pid != hung

                await eventually(is_replaced, what="another server")
                await bus.granted(1)
                assert (await bus.status())["programs"].keys() >= {"p0", "p1"}, "nothing of the stream is lost"
            finally:
                with suppress(ProcessLookupError):
                    os.kill(hung, signal.SIGKILL)
        assert daemon.stop() == 0
