"""Watch a daemon: its status, once a control interval, as the load generator's time series want it."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import msgspec
import nats
from anyio import move_on_after, sleep_forever
from anyio.from_thread import start_blocking_portal
from nats.aio.client import Client
from nats.aio.msg import Msg

from controlplane.core.model.errors import ControlPlaneError
from controlplane.core.model.types import Pressure
from controlplane.core.policies.protocols import Window
from controlplane.lab.load.options import Observation
from controlplane.transport.nats_options import nats_options
from controlplane.transport.subjects import status_subject

_CLOSES_WITHIN_S = 5.0
_CONNECTS: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.2}


class _Status(msgspec.Struct, frozen=True):
    """The part of the status that is plotted."""

    window: Window
    pressure: Pressure


class StatusWatch:
    """Subscribes in a thread of its own; ``latest`` never waits. Use as a context manager."""

    def __init__(self, url: str | Callable[[], str], node: str) -> None:
        self._url, self._node = url, node
        self._latest: Observation | None = None
        self._ending = ExitStack()

    def latest(self) -> Observation | None:
        """The last status heard; None before the first."""
        return self._latest

    def __enter__(self) -> "StatusWatch":
        portal = self._ending.enter_context(start_blocking_portal(name="penstock-watch"))
        self._ending.callback(portal.start_task_soon(self._watch).cancel)
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.close()

    async def _watch(self) -> None:
        with suppress(nats.errors.Error, ControlPlaneError, OSError, TimeoutError):
            url = self._url() if callable(self._url) else self._url
            client = Client()
            try:  # around the connecting too: it is cancelled in the middle of it when a run ends as it begins
                await client.connect(**_CONNECTS, error_cb=_ignore, **nats_options(url))
                await client.subscribe(status_subject(self._node), cb=self._on_status)
                await sleep_forever()
            finally:
                with move_on_after(_CLOSES_WITHIN_S, shield=True):
                    await client.close()

    async def _on_status(self, message: Msg) -> None:
        if message.reply:
            return  # somebody's request, not the daemon's status
        with suppress(msgspec.DecodeError):
            status = msgspec.json.decode(message.data, type=_Status)
            self._latest = Observation(
                pressure=status.pressure, window=status.window.window, limit=status.window.limit
            )


async def _ignore(error: Exception) -> None:
    """A lost server is the replay's to tell, not the watcher's."""
