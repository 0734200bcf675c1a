"""One round of two controllers that heard the same: both decisions are compared, and the shadow is told the truth.

What the controller in force says happens, so the shadow believes it: who was let in runs, who was paused is held,
and contexts go where they are sent. What only the shadow says happens nowhere: whom it let in and the other one
holds has a turn that is on its way, for as long as it takes.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.core.ledger.apply_command import apply_command
from controlplane.core.model import commands as cmd
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, Program, Status
from controlplane.core.scheduling.controller import Controller

_MOST_LATEST = 16
_RETENTION = (cmd.Retain, cmd.Release, cmd.Demote, cmd.Discard, cmd.Prefetch)
_MOVING = (cmd.Demote, cmd.Discard, cmd.Prefetch)
_ALIKE = 0.1  # of the longer one: two pins' times that differ by less are the same decision
_Programs = Mapping[str, Program]
_Named = Mapping[str, cmd.ProgramCommand]


@dataclass(slots=True, kw_only=True)
class DifferenceCounts:
    """Decisions by how the two compare."""

    same: int = 0
    earlier: int = 0  # it let a program in before the one in force did
    later: int = 0  # it would have held a program that the one in force let in
    order: int = 0  # of the later ones: it would have let another program in first
    slot_taken: int = 0  # it would have taken a slot back
    slot_kept: int = 0  # it would have left a slot that the one in force took back
    retained: int = 0  # it would have kept a context that the one in force gave up
    not_retained: int = 0  # it would have given a context up
    ttl: int = 0  # both keep it, for times that differ by more than a tenth
    moved: int = 0  # it would have moved a context to host memory, discarded it, or neither, where the other did
    placed: int = 0  # it would have sent a turn to another engine
    unjudged: int = 0  # decisions of the one in force while the shadow decided once in an interval only


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One of the last few: what was decided about a program, and what the shadow would have."""

    at_ns: int
    kind: str
    program_id: str
    live: str
    shadow: str


@dataclass(slots=True, kw_only=True)
class Differences:
    """What was found since the two began to be compared."""

    counts: DifferenceCounts = field(default_factory=DifferenceCounts)
    latest: deque[Difference] = field(default_factory=lambda: deque(maxlen=_MOST_LATEST))
    _lead_ns: int = 0

    @property
    def lead_s(self) -> float:
        """Mean time by which the shadow was earlier, where it was."""
        counted = self.counts.earlier
        return self._lead_ns / counted / NANOSECONDS_PER_SECOND if counted else 0.0

    def same(self) -> None:
        self.counts.same += 1

    def found(self, kind: str, at_ns: int, program_id: str, *, live: str, shadow: str) -> None:
        """They decided otherwise; ``kind`` is a field of the counts."""
        setattr(self.counts, kind, getattr(self.counts, kind) + 1)
        self.latest.append(
            Difference(at_ns=at_ns, kind=kind, program_id=program_id, live=live, shadow=shadow),
        )

    def was_earlier(self, at_ns: int, program_id: str, lead_ns: int) -> None:
        """The controller in force let in whom the shadow had let in so long before."""
        self._lead_ns += lead_ns
        live = f"let in after {lead_ns / NANOSECONDS_PER_SECOND:.1f}s more"
        self.found("earlier", at_ns, program_id, live=live, shadow="let it in before")


class ShadowComparator:
    """Compares ``shadow`` with ``live``, which is only ever read."""

    def __init__(self, live: Controller, shadow: Controller, differences: Differences) -> None:
        self._live, self.shadow, self._differences = live, shadow, differences
        self.ahead: dict[str, int] = {}  # whom only the shadow let in, and when; the other one holds them

    def compare(self, live: Sequence[cmd.Command], shadow: Sequence[cmd.Command], now_ns: int) -> None:
        """Both decided: take note, and tell the shadow what is so."""
        self._admissions(_named(live, cmd.Admit), _named(shadow, cmd.Admit), now_ns)
        self._pauses(_named(live, cmd.Pause), _named(shadow, cmd.Pause), now_ns)
        self._retention(_named(live, *_RETENTION), _named(shadow, *_RETENTION), now_ns)
        self._places(_named(live, cmd.Place), _named(shadow, cmd.Place), now_ns)
        self._settle(live, shadow)

    def sync_from_live(self, live: Sequence[cmd.Command], now_ns: int) -> None:
        for command in live:
            if isinstance(command, cmd.Admit | cmd.Pause | cmd.Place | _RETENTION):
                self._differences.counts.unjudged += 1
            if isinstance(command, cmd.Admit):
                self.ahead.pop(command.program_id, None)
            if isinstance(command, cmd.Admit | cmd.Pause | cmd.Place):
                self._enact(command, now_ns)
        self._settle(live, ())

    def refresh_ahead(self, now_ns: int) -> None:
        """Once an interval, after a round.

        Whom the other one still holds has a turn on its way here; whom it let in, or who left, is not waited for.
        """
        waiting, programs = self._live.ledger.programs.queue, self.shadow.ledger.programs.by_name
        for name in list(self.ahead):
            program = programs.get(name)
            if name not in waiting or program is None or program.status is not Status.ACTIVE:
                del self.ahead[name]
            elif not program.open_turns:
                program.idle_since_ns = program.last_seen_ns = now_ns

    # Kind by kind

    def _admissions(self, live: _Named, shadow: _Named, now_ns: int) -> None:
        differences, programs = self._differences, self.shadow.ledger.programs.by_name
        first = next((each for each in self.shadow.considered if each.program_id not in shadow), None)
        for name, command in live.items():
            program = programs.get(name)
            if program is None or program.parent_id:
                continue  # a child goes with its root
            if name in shadow:
                differences.same()
            elif name in self.ahead:
                differences.was_earlier(now_ns, name, now_ns - self.ahead.pop(name))
            elif program.status is not Status.ACTIVE:
                choice = f"holds it: window {self.shadow.window.limit or 'without limit'}"
                if first is not None and first.program_id != name:
                    differences.counts.order += 1
                    choice = f"{choice}; {first.program_id} would be next"
                differences.found("later", now_ns, name, live=f"let in: {command.reason}", shadow=choice)
        for name, command in live.items():
            if name not in shadow:
                self._enact(command, now_ns)
        queue = self._live.ledger.programs.queue
        for name in shadow:
            if name not in live and name in queue:
                self.ahead.setdefault(name, now_ns)

    def _pauses(self, live: _Named, shadow: _Named, now_ns: int) -> None:
        ours, theirs = self.shadow.ledger.programs.by_name, self._live.ledger.programs.by_name
        for name, command in live.items():
            if name in shadow:
                self._differences.same()
            elif _is_active(ours, name):
                texts = f"its slot was taken back: {command.reason}"
                self._differences.found("slot_kept", now_ns, name, live=texts, shadow="leaves it")
                self.ahead.pop(name, None)
                self._enact(command, now_ns)
        for name, command in shadow.items():
            if name not in live and self.ahead.pop(name, None) is None and _is_active(theirs, name):
                texts = f"takes it back: {command.reason}"
                self._differences.found("slot_taken", now_ns, name, live="it keeps its slot", shadow=texts)

    def _retention(self, live: _Named, shadow: _Named, now_ns: int) -> None:
        ours, theirs = self.shadow.ledger.programs.by_name, self._live.ledger.programs.by_name
        for name in dict.fromkeys((*live, *shadow)):
            left = _left_ns(theirs, name, now_ns), _left_ns(ours, name, now_ns)
            by_live, by_shadow = live.get(name), shadow.get(name)
            kind = _retention_difference(*left, by_live, by_shadow)
            if kind:
                texts = {"live": _description(by_live, left[0]), "shadow": _description(by_shadow, left[1])}
                self._differences.found(kind, now_ns, name, **texts)
            else:
                self._differences.same()

    def _places(self, live: _Named, shadow: _Named, now_ns: int) -> None:
        ours, theirs = self.shadow.ledger.programs.by_name, self._live.ledger.programs.by_name
        for name in dict.fromkeys((*live, *shadow)):
            here, there = ours.get(name), theirs.get(name)
            if here is None or there is None or here.placed == there.placed:
                self._differences.same()
            else:
                self._differences.found("placed", now_ns, name, live=there.placed, shadow=here.placed)
        for command in live.values():
            if not isinstance(choice := shadow.get(command.program_id), cmd.Place) or choice != command:
                self._enact(command, now_ns)

    # The truth

    def _enact(self, command: cmd.Command, now_ns: int) -> None:
        apply_command(self.shadow.ledger, command, now_ns)

    def _settle(self, live: Iterable[cmd.Command], shadow: Iterable[cmd.Command]) -> None:
        """Answers will name the commands of the controller in force: the shadow's own are never answered."""
        engines = self.shadow.ledger.engines
        for command in shadow:
            if isinstance(command, _MOVING):
                engines.moving.pop(command.command_id, None)
        for command in live:
            if isinstance(command, _MOVING):
                tier = self._live.ledger.engines.moving.get(command.command_id)
                if tier is not None:
                    engines.expect_move(command.command_id, tier)
        ours, theirs = self.shadow.numbering, self._live.numbering
        ours.sent, ours.began, ours.recalled = theirs.sent, theirs.began, theirs.recalled


def _named(commands: Iterable[cmd.Command], *kinds: type[cmd.ProgramCommand]) -> _Named:
    return {each.program_id: each for each in commands if isinstance(each, kinds)}


def _is_active(programs: _Programs, name: str) -> bool:
    program = programs.get(name)
    return program is not None and program.status is Status.ACTIVE and not program.parent_id


def _left_ns(programs: _Programs, name: str, now_ns: int) -> int:
    program = programs.get(name)
    return max(0, program.retained_until_ns - now_ns) if program is not None else 0


def _retention_difference(
    live_ns: int, shadow_ns: int, live: cmd.Command | None, shadow: cmd.Command | None
) -> str:
    """The kind of difference between two pins and what else was done to the context; empty: there is none."""
    if live_ns and shadow_ns:
        return "ttl" if abs(live_ns - shadow_ns) > _ALIKE * max(live_ns, shadow_ns) else ""
    if shadow_ns:
        return "retained"
    if live_ns:
        return "not_retained"
    moves = [type(each) if isinstance(each, _MOVING) else None for each in (live, shadow)]
    return "moved" if moves[0] is not moves[1] else ""


def _description(command: cmd.Command | None, left_ns: int) -> str:
    what = type(command).__name__.lower() if command is not None else "nothing"
    return f"{what}; kept for {left_ns / 1e9:.1f}s more" if left_ns else f"{what}; not kept"
