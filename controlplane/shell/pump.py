"""Bytes in, decisions out, without input or output: what the daemon does between two waits.

The daemon feeds it from the bus in real time; the parity tests feed it the same bytes in virtual time.
"""

from collections.abc import Sequence
from typing import Protocol

from controlplane.core.commands import Command
from controlplane.core.controller import Controller
from controlplane.core.errors import RemoteEventError
from controlplane.core.events import Event
from controlplane.wire.codec import decode_commands, decode_events
from controlplane.wire.senders import believed


class Recorder(Protocol):
    """Where a run is written down (``wire.log.LogWriter``)."""

    def event(self, event: Event, now_ns: int) -> None: ...
    def tick(self, now_ns: int) -> None: ...
    def command(self, command: Command, now_ns: int) -> None: ...
    def config(self, text: str, now_ns: int) -> None: ...


class Pump:
    """Decodes, applies, decides and records; counts what had to be rejected."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.recorders: list[Recorder] = []
        self._untold: tuple[int, Sequence[Command]] | None = None
        self.rejected = 0
        self.refused = 0  # of those: told by somebody whose it is not to tell
        self.last_rejection = ""
        self._now_ns = 0

    def feed(self, data: bytes, now_ns: int, subject: str = "") -> int:
        """Take an event batch in; the number of events that were taken.

        What is malformed is counted, and so is what is not for a sender on ``subject`` to tell (no subject: nobody
        else's bytes, as in a test). The rest is applied.
        """
        self.tell()
        now_ns = self._forward(now_ns)
        try:
            batch = decode_events(data)
        except RemoteEventError as error:
            self._reject(1, str(error))
            return 0
        if batch.rejected:
            self._reject(len(batch.rejected), batch.rejected[-1])
        events = batch.events
        if subject:
            events, refused = believed(batch, subject)
            if refused:
                self.refused += len(refused)
                self._reject(len(refused), f"refused on {subject}: {refused[-1]}")
        receive = self.controller.receive
        for event in events:
            receive(event, now_ns)
        for recorder in self.recorders:
            for event in events:
                recorder.event(event, now_ns)
        return len(events)

    def recall(self, data: bytes, now_ns: int) -> None:
        """Take in commands that were sent before a restart."""
        now_ns = self._forward(now_ns)
        try:
            commands = decode_commands(data)
        except RemoteEventError as error:
            self._reject(1, str(error))
            return
        for command in commands:
            self.controller.recall(command, now_ns)

    def decide(self, now_ns: int) -> Sequence[Command]:
        """Tick if something is due. The recorders hear of it with ``tell``, at the latest before the next event."""
        self.tell()
        now_ns = self._forward(now_ns)
        if self.controller.next_deadline_ns() > now_ns:
            return ()
        commands = self.controller.tick(now_ns)
        self._untold = (now_ns, commands)
        return commands

    def tell(self) -> None:
        """Have what was decided last written down: once it was sent, since a grant must not wait for a disk."""
        if self._untold is None:
            return
        (now_ns, commands), self._untold = self._untold, None
        for recorder in self.recorders:
            recorder.tick(now_ns)
            for command in commands:
                recorder.command(command, now_ns)

    def _forward(self, now_ns: int) -> int:
        """Time never runs backwards, not even from a stream's timestamps to our own clock."""
        self._now_ns = max(self._now_ns, now_ns)
        return self._now_ns

    def _reject(self, count: int, why: str) -> None:
        self.rejected += count
        self.last_rejection = why
