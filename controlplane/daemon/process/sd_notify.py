"""Tells the service manager how the daemon is: sd_notify(3), over the socket that ``NOTIFY_SOCKET`` names."""

import contextlib
import os
import socket
from collections.abc import Callable, Mapping

from anyio import get_cancelled_exc_class, sleep

_EVERY_S = 1.0  # systemd advises to be heard twice in ``WatchdogSec``, which is 30 in our unit


class Supervisor:
    """Who started us, if it wants to be told. One that cannot be reached is no reason to stop."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name  # "@": an abstract one

    async def keep_notifying(self, status: Callable[[], str]) -> None:
        """That the daemon is ready; then, until it is cancelled, that it is alive, and how it stands, in a line."""
        if not self._address:
            return
        self._notify("READY=1")
        try:
            while True:
                self._notify("WATCHDOG=1", f"STATUS={status()}")
                await sleep(_EVERY_S)
        except get_cancelled_exc_class():
            self._notify("STOPPING=1")
            raise

    def _notify(self, *lines: str) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as us:
            us.setblocking(False)
            us.sendto("\n".join(lines).encode(), self._address)
