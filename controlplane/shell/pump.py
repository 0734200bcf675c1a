"""Bytes in, decisions out, without input or output: what the daemon does between two waits.

The daemon feeds it from the bus in real time; the parity tests feed it the same bytes in virtual time.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from controlplane.core.commands import Command
from controlplane.core.controller import Controller
from controlplane.core.errors import RemoteEventError
from controlplane.core.events import Event
from controlplane.core.steps import Steps, in_chunks, run
from controlplane.wire.codec import decode_commands, decode_events
from controlplane.wire.senders import believed

_AT_ONCE = 64  # events between two pauses


class Recorder(Protocol):
    """Where a run is written down (``wire.log.LogWriter``)."""

    def event(self, event: Event, now_ns: int) -> None: ...
    def tick(self, now_ns: int) -> None: ...
    def command(self, command: Command, now_ns: int) -> None: ...
    def config(self, text: str, now_ns: int) -> None: ...


class Beside(Protocol):
    """Whoever hears the same, once all of it was written down, and tells nobody."""

    def hear(
        self, fed: Sequence[tuple[int, Sequence[Event]]], decided: tuple[int, Sequence[Command]] | None
    ) -> None: ...


Sift = Callable[[Sequence[Event], str], Sequence[Event]]
"""Of the events on a subject those that count here."""


class Pump:
    """Decodes, applies, decides and records; counts what had to be rejected."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.recorders: list[Recorder] = []
        self.besides: list[Beside] = []
        self.muted = False  # what another daemon decides, that one writes down
        self.sift: Sift | None = None
        self._fed: list[tuple[int, Sequence[Event]]] = []  # that the recorders have not heard of
        self._decided: tuple[int, Sequence[Command]] | None = None  # after those, likewise
        self.rejected = 0
        self.refused = 0  # of those: told by somebody whose it is not to tell
        self.last_rejection = ""
        self._now_ns = 0

    def feed(self, data: bytes, now_ns: int, subject: str = "") -> int:
        """Take an event batch in; the number of events that were taken.

        What is malformed is counted, and so is what is not for a sender on ``subject`` to tell (no subject: nobody
        else's bytes, as in a test). The rest is applied.
        """
        return run(self.feeding(data, now_ns, subject))

    def feeding(self, data: bytes, now_ns: int, subject: str = "") -> Steps[int]:
        """``feed``, with pauses."""
        yield from self._telling_decided()
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
            if self.sift is not None:
                events = list(self.sift(events, subject))
        for number, event in enumerate(events):
            if not number % _AT_ONCE:
                yield
            yield from self.controller.receiving(event, now_ns)
        if (self.recorders or self.besides) and not self.muted:
            self._fed.append((now_ns, events))
        return len(events)

    def recalling(self, data: bytes, now_ns: int) -> Steps[None]:
        """Take in commands that were sent before a restart."""
        now_ns = self._forward(now_ns)
        try:
            commands = decode_commands(data)
        except RemoteEventError as error:
            self._reject(1, str(error))
            return
        for number, command in enumerate(commands):
            if not number % _AT_ONCE:
                yield
            self.controller.recall(command, now_ns)

    def following(self, now_ns: int) -> Steps[None]:
        """Let time pass while another daemon decides."""
        yield from self.telling()
        yield from self.controller.following(self._forward(now_ns))

    def decide(self, now_ns: int) -> Sequence[Command]:
        """Tick if something is due. The recorders hear of it with ``tell``, at the latest before the next event."""
        return run(self.deciding(now_ns))

    def deciding(self, now_ns: int) -> Steps[Sequence[Command]]:
        """``decide``, with pauses."""
        yield from self._telling_decided()
        now_ns = self._forward(now_ns)
        if self.controller.next_deadline_ns() > now_ns:
            return ()
        commands = yield from self.controller.ticking(now_ns)
        self._decided = (now_ns, commands)
        return commands

    def tell(self) -> None:
        """Have what came and what was decided written down: once that was sent, as a grant waits for no disk."""
        run(self.telling())

    def telling(self) -> Steps[None]:
        """``tell``, with pauses."""
        fed, self._fed = self._fed, []
        decided, self._decided = self._decided, None
        for recorder in self.recorders:
            for now_ns, events in fed:
                for some in in_chunks(events, _AT_ONCE):
                    for event in some:
                        recorder.event(event, now_ns)
                    yield
            if decided is not None:
                now_ns, commands = decided
                recorder.tick(now_ns)
                for told in in_chunks(commands, _AT_ONCE):
                    for command in told:
                        recorder.command(command, now_ns)
                    yield
        if fed or decided:
            for beside in self.besides:
                beside.hear(fed, decided)
                yield

    def _telling_decided(self) -> Steps[None]:
        """What a decision was made from is written down with it, hence before anything else happens."""
        if self._decided is not None:
            yield from self.telling()

    def _forward(self, now_ns: int) -> int:
        """Time never runs backwards, not even from a stream's timestamps to our own clock."""
        self._now_ns = max(self._now_ns, now_ns)
        return self._now_ns

    def _reject(self, count: int, why: str) -> None:
        self.rejected += count
        self.last_rejection = why
