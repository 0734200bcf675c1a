"""Watch a daemon: its status, once a control interval, as the load generator's time series want it."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec
import nats
from nats.aio.msg import Msg

from controlplane.core.errors import ControlPlaneError
from controlplane.core.policies import Window
from controlplane.core.types import Pressure
from controlplane.lab.load.options import Observation
from controlplane.wire.nats_options import nats_options
from controlplane.wire.subjects import status_subject


class _Status(msgspec.Struct, frozen=True):
    """The part of the status that is plotted."""

    window: Window
    pressure: Pressure


class StatusWatch:
    """Subscribes in a thread of its own; ``latest`` never waits. Use as a context manager."""

    def __init__(self, url: str | Callable[[], str], node: str) -> None:
        self._url, self._node = url, node
        self._latest: Observation | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="penstock-watch", daemon=True)
        self._stop = asyncio.Event()

    def latest(self) -> Observation | None:
        """The last status heard; None before the first."""
        return self._latest

    def __enter__(self) -> "StatusWatch":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._watch())

    async def _watch(self) -> None:
        with suppress(nats.errors.Error, ControlPlaneError, OSError, TimeoutError):
            url = self._url() if callable(self._url) else self._url
            client = await nats.connect(
                url, max_reconnect_attempts=-1, reconnect_time_wait=0.2, error_cb=_ignore, **nats_options()
            )
            await client.subscribe(status_subject(self._node), cb=self._hear)
            await self._stop.wait()
            await client.close()

    async def _hear(self, message: Msg) -> None:
        if message.reply:
            return  # somebody's request, not the daemon's status
        with suppress(msgspec.DecodeError):
            status = msgspec.json.decode(message.data, type=_Status)
            self._latest = Observation(
                pressure=status.pressure, window=status.window.window, limit=status.window.limit
            )


async def _ignore(error: Exception) -> None:
    """A lost server is the replay's to tell, not the watcher's."""
