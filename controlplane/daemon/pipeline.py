"""Bytes in, decisions out, without input or output: what the daemon does between two waits.

The daemon feeds it from the bus in real time; the parity tests feed it the same bytes in virtual time.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from controlplane.core.model.commands import Command
from controlplane.core.model.errors import RemoteEventError
from controlplane.core.model.events import Event
from controlplane.core.model.steps import Steps, in_chunks, run
from controlplane.core.model.types import seconds
from controlplane.core.scheduling.controller import Controller
from controlplane.daemon.process.set_aside import SetAside
from controlplane.daemon.process.tasks import Failures, described
from controlplane.transport.authorization import authorize
from controlplane.wire.codec import DecodedBatch, decode_commands, decoding_events

_AT_ONCE = 64  # events between two pauses
Fed = Sequence[tuple[int, Sequence[Event]]]
"""What came, with the times."""
Decided = tuple[int, Sequence[Command]] | None
"""What was then decided, and when."""


class Recorder(Protocol):
    """Where a run is written down (``wire.log.LogWriter``)."""

    def event(self, event: Event, now_ns: int) -> None: ...
    def tick(self, now_ns: int) -> None: ...
    def command(self, command: Command, now_ns: int) -> None: ...
    def config(self, text: str, now_ns: int) -> None: ...


class Listener(Protocol):
    """Whoever hears of each event at once, whichever daemon decides."""

    def event(self, event: Event, now_ns: int) -> None: ...


class Observer(Protocol):
    """Whoever hears the same, once all of it was written down, and tells nobody."""

    def observe(self, fed: Fed, decided: Decided) -> None: ...


TICKS = "ticks"
_FIRST_PAUSE_NS, _LONGEST_PAUSE_NS = seconds(0.05), seconds(1)  # after a tick that raised
_MEND_EVERY_NS = seconds(1)  # of very many programs it takes a second

EventFilter = Callable[[Sequence[Event], str], Sequence[Event]]
"""Of the events on a subject those that count here."""


class DecisionPipeline:
    """Decodes, applies, decides and records; counts what had to be rejected.

    Whatever any of that raises ends nothing. A message is set aside, and what it left half applied is mended before
    the next decision. A tick that raised is made again after a while.
    """

    def __init__(self, controller: Controller, failures: Failures | None = None) -> None:
        self.controller = controller
        self.failures = failures or Failures()
        self.set_aside = SetAside()
        self.recorders: list[Recorder] = []
        self.listener: Listener | None = None
        self.observer: Observer | None = None
        self.muted = False  # what another daemon decides, that one writes down
        self.event_filter: EventFilter | None = None
        self._fed: list[tuple[int, Sequence[Event]]] = []  # that the recorders have not heard of
        self._decided: Decided = None  # after those, likewise
        self.rejected = 0
        self.refused = 0  # of those: told by somebody whose it is not to tell
        self.last_rejection = ""
        self._now_ns = 0
        self._is_torn = False  # an error has left the state half changed
        self._mended_ns = -_MEND_EVERY_NS
        self._tick_pause_ns = 0  # 0: the last tick did not raise
        self._tick_again_ns = 0

    def feed(self, data: bytes, now_ns: int, subject: str = "") -> int:
        """Take an event batch in; the number of events that were taken.

        What is malformed is counted, and so is what is not for a sender on ``subject`` to tell (no subject: nobody
        else's bytes, as in a test). The rest is applied.
        """
        return run(self.feeding(data, now_ns, subject))

    def feeding(self, data: bytes, now_ns: int, subject: str = "") -> Steps[int]:
        yield from self._recording_decided()
        now_ns = self._forward(now_ns)
        try:
            batch = yield from decoding_events(data)
            events = self._authorized(batch, subject)
        except RemoteEventError as error:
            self._reject(1, str(error))
            return 0
        except Exception as error:
            self.put_aside(data, subject, error)
            return 0
        taken, made = [], 0
        for number, event in enumerate(events):
            if not number % _AT_ONCE:
                yield
            try:
                yield from self.controller.receiving(event, now_ns)
                taken.append(event)
                for whole in self.controller.ledger.handoffs.take_over():
                    yield from self.controller.receiving(whole, now_ns)
                    taken.append(whole)
                    made += 1
            except Exception as error:
                self.put_aside(data, subject, error)
                self.controller.quarantine(event)
                self._is_torn = True
        self._tell_listener(taken, now_ns)
        if (self.recorders or self.observer) and not self.muted:
            self._fed.append((now_ns, taken))
        return len(taken) - made

    def _tell_listener(self, events: Sequence[Event], now_ns: int) -> None:
        if (listener := self.listener) is None:
            return
        try:
            for event in events:
                listener.event(event, now_ns)
        except Exception as error:
            self.failures.note(type(listener).__name__, error, "going on without what it was told")

    def _authorized(self, batch: DecodedBatch, subject: str) -> Sequence[Event]:
        if batch.rejected:
            self._reject(len(batch.rejected), batch.rejected[-1])
        if not subject:
            return batch.events
        events, refused = authorize(batch, subject)
        if refused:
            self.refused += len(refused)
            self._reject(len(refused), f"refused on {subject}: {refused[-1]}")
        return events if self.event_filter is None else list(self.event_filter(events, subject))

    def recalling(self, data: bytes, now_ns: int) -> Steps[None]:
        now_ns = self._forward(now_ns)
        try:
            commands = decode_commands(data)
        except RemoteEventError as error:
            self._reject(1, str(error))
            return
        except Exception as error:
            self.put_aside(data, "", error)
            return
        for number, command in enumerate(commands):
            if not number % _AT_ONCE:
                yield
            try:
                self.controller.replay_command(command, now_ns)
            except Exception as error:
                self.put_aside(data, "", error)
                self._is_torn = True

    def put_aside(self, data: bytes, subject: str, error: Exception) -> None:
        self.set_aside.add(data, subject, described(error))
        self.failures.note("messages", error, "setting it aside")

    def following(self, now_ns: int) -> Steps[None]:
        """Let time pass while another daemon decides."""
        yield from self.recording()
        yield from self._ticking(self.controller.following, self._forward(now_ns))

    def next_deadline_ns(self) -> int:
        """When ``decide`` has something to do. 0: at once."""
        return max(self.controller.next_deadline_ns(), 0 if self.decides else self._tick_again_ns)

    @property
    def decides(self) -> bool:
        return not self._tick_pause_ns

    def decide(self, now_ns: int) -> Sequence[Command]:
        """Tick if something is due. The recorders get it with ``record``, at the latest before the next event."""
        return run(self.deciding(now_ns))

    def deciding(self, now_ns: int) -> Steps[Sequence[Command]]:
        yield from self._recording_decided()
        now_ns = self._forward(now_ns)
        if self.next_deadline_ns() > now_ns:
            return ()
        commands = (yield from self._ticking(self.controller.ticking, now_ns)) or ()
        self._decided = (now_ns, commands)
        return commands

    def _ticking(
        self, ticking: Callable[[int], Steps[Sequence[Command] | None]], now_ns: int
    ) -> Steps[Sequence[Command] | None]:
        """What ``ticking`` decides; where it raises, what it had decided by then."""
        if self._is_torn and now_ns - self._mended_ns >= _MEND_EVERY_NS:
            self.mend(now_ns)
        try:
            decided = yield from ticking(now_ns)
            self._tick_pause_ns = 0
        except Exception as error:
            self.failures.note(TICKS, error, "deciding again soon")
            self._tick_pause_ns = min(_LONGEST_PAUSE_NS, max(_FIRST_PAUSE_NS, 2 * self._tick_pause_ns))
            self._tick_again_ns, self._is_torn = now_ns + self._tick_pause_ns, True
            decided = self.controller.abort_tick()
        return decided

    def mend(self, now_ns: int) -> None:
        """Have the state's records agree again where an error has left them half changed."""
        if not self._is_torn:
            return
        self._mended_ns = now_ns
        try:
            self.controller.mend(now_ns, suspects=self._tick_pause_ns >= _LONGEST_PAUSE_NS)
            self._is_torn = False
        except Exception as error:
            self.failures.note("mending", error, "going on with what there is")

    def record(self) -> None:
        """Have what came and what was decided written down: once that was sent, as a grant waits for no disk."""
        run(self.recording())

    def recording(self) -> Steps[None]:
        fed, self._fed = self._fed, []
        decided, self._decided = self._decided, None
        for recorder in self.recorders:
            try:
                yield from writing_down(recorder, fed, decided)
            except Exception as error:
                self.failures.note(type(recorder).__name__, error, "going on without what it was told")
        if self.observer is not None and (fed or decided):
            try:
                self.observer.observe(fed, decided)
            except Exception as error:
                self.failures.note(type(self.observer).__name__, error, "going on without what it was told")
            yield

    def _recording_decided(self) -> Steps[None]:
        """What a decision was made from is written down with it, hence before anything else happens."""
        if self._decided is not None:
            yield from self.recording()

    def _forward(self, now_ns: int) -> int:
        """Time never runs backwards, not even from a stream's timestamps to our own clock."""
        self._now_ns = max(self._now_ns, now_ns)
        return self._now_ns

    def _reject(self, count: int, why: str) -> None:
        self.rejected += count
        self.last_rejection = why


def writing_down(recorder: Recorder, fed: Fed, decided: Decided) -> Steps[None]:
    """Tell a recorder, in order, with pauses."""
    for now_ns, events in fed:
        for some in in_chunks(events, _AT_ONCE):
            for event in some:
                recorder.event(event, now_ns)
            yield
    if decided is not None:
        now_ns, commands = decided
        recorder.tick(now_ns)
        for chunk in in_chunks(commands, _AT_ONCE):
            for command in chunk:
                recorder.command(command, now_ns)
            yield
