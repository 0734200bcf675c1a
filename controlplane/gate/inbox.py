"""Brings commands and heartbeats from the emitter's thread into the gate's."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from controlplane.core.model.commands import Command

if TYPE_CHECKING:
    from controlplane.wire.heartbeat import Heartbeat


class Inbox:
    """A mailbox that any thread may fill and the gate's thread empties.

    Before ``attach`` it only keeps the newest ``capacity`` items, since a gate may be made before its event loop
    runs. ``on_item`` is called in the loop's thread with each item and the instant of its receipt.
    """

    def __init__(
        self,
        on_item: "Callable[[Command | Heartbeat, int], None]",
        *,
        now_ns: Callable[[], int],
        capacity: int = 65_536,
    ) -> None:
        self._on_item = on_item
        self._now_ns = now_ns
        self._items: deque[tuple[Command | Heartbeat, int]] = deque(maxlen=capacity)
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake ``loop`` for every item from now on. Call it in the loop's thread."""
        if self._loop is not loop:
            self._loop = loop
            self.drain()

    def post(self, item: "Command | Heartbeat") -> None:
        """Post an item from any thread. Never blocks, never raises. A closed loop takes nothing more."""
        self._items.append((item, self._now_ns()))
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self.drain)
        except RuntimeError:
            self._loop = None

    def drain(self) -> None:
        """Hand over all items, also those posted meanwhile. Call it in the gate's thread."""
        while self._items:
            self._on_item(*self._items.popleft())
