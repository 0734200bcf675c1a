"""Events that agents' hooks hand over: their processes end at once, so the daemon sends them on.

While the bus is away they wait here, the oldest making room. One publisher speaks for all hooks, so that none
leaves a name behind.
"""

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Iterable

from controlplane.core.model.commands import Command, StartTool
from controlplane.core.model.errors import LocalEventError, RemoteEventError
from controlplane.core.model.events import Event, ToolEnqueued, ToolStarted
from controlplane.daemon.bus.connection import Bus
from controlplane.transport.subjects import TOOL_ROLE, publisher_name
from controlplane.wire.codec import encode_events

_MOST_WAITING = 8192  # hooks, while the bus is away
_MOST_EVENTS = 256  # of a message: a bus takes 1 MiB, and a name has 256 characters at most
_AGAIN_S = 0.25
_ASK_AGAIN_S = 2.0
_PATIENCE_S = 300.0  # for a slot of the host: the hook itself may have less


class Hooks:
    """Sends hooks' events on, in their order, while ``run`` runs."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._publisher = publisher_name(bus.node, TOOL_ROLE, f"hooks-{secrets.token_hex(4)}")
        self._sequence = 1
        self._batches: deque[bytes] = deque(maxlen=_MOST_WAITING)
        self._filled = asyncio.Event()
        self._slots: dict[tuple[str, str], asyncio.Event] = {}  # of tools that wait for one

    def send(self, events: Iterable[Event]) -> None:
        """Queue one hook's events. Raises ``RemoteEventError`` if they cannot be encoded."""
        now_ns = time.monotonic_ns()
        items = [(now_ns, event) for event in events]
        try:
            for begin in range(0, len(items), _MOST_EVENTS):
                some = items[begin : begin + _MOST_EVENTS]
                self._batches.append(encode_events(self._publisher, self._sequence, some))
                self._sequence += len(some)
                self._filled.set()
        except LocalEventError as error:
            raise RemoteEventError(str(error)) from None

    async def send_with_slot(self, events: Iterable[Event]) -> None:
        """Send them once the host has room for the tool that they start, or nobody waits for it any more."""
        events = list(events)
        try:
            for event in events:
                if isinstance(event, ToolStarted):
                    await self._until_slot(event)
        finally:
            self.send(events)

    async def _until_slot(self, start: ToolStarted) -> None:
        name, call_id = start.program_id, start.call_id
        wanted = ToolEnqueued(program_id=name, call_id=call_id, tool=start.tool, wants_slot=True, detached=True)
        has_slot = self._slots.setdefault((name, call_id), asyncio.Event())  # two hooks may tell of one call
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not has_slot.is_set():
                    self.send([wanted])
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(has_slot.wait(), _ASK_AGAIN_S)
        except TimeoutError:
            pass
        finally:
            self._slots.pop((name, call_id), None)

    def pass_on(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, StartTool) and (command.program_id, command.call_id) in self._slots:
                self._slots[command.program_id, command.call_id].set()

    async def run(self) -> None:
        """Send what is queued until cancelled; what the bus did not confirm again."""
        while True:
            await self._filled.wait()
            while self._batches:
                batch = self._batches[0]
                if not await self._bus.relay_events(TOOL_ROLE, batch):
                    await asyncio.sleep(_AGAIN_S)
                elif self._batches and self._batches[0] is batch:  # it may have made room meanwhile
                    self._batches.popleft()
            self._filled.clear()
