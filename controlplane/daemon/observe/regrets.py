"""The daemon's regret ledger: it hears what happens and what is decided, and passes on each verdict."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from controlplane.core.model.commands import Command
from controlplane.core.model.events import Event
from controlplane.core.model.types import Program
from controlplane.core.regret import (
    LEAST_JUDGED,
    RegretLedger,
    Sentence,
    Sums,
    Verdict,
    judged,
    note_on,
    sentences,
)
from controlplane.core.regret.descriptions import what_happened
from controlplane.daemon.observe.recomputing import Recomputing

_MOST_LATEST = 12


@dataclass(slots=True, kw_only=True)
class RegretRow:
    """All verdicts of one kind, for the page."""

    kind: str
    count: int = 0
    judged: int = 0  # of these: it is known what came of them
    again_tokens: int = 0
    cost_s: float = 0.0
    gain_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """A verdict, and in words what happened."""

    verdict: Verdict
    happened: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretView:
    """What the page tells of regret. ``regret_ratio``: what gaps cost, over what they would have in hindsight."""

    regret_ratio: float
    again_tokens: int
    pins_lost: int
    sentences: list[Sentence]
    note: str  # on them
    least_judged: int  # decisions of a kind: of fewer it says nothing
    kinds: list[RegretRow]
    latest: list[Latest]  # the newest first


def _ignore(text: str) -> None:
    """Nobody wants to know."""


class Regrets:
    """A recorder of what happens while its daemon leads. Who is in ``on_verdict`` is told of each verdict, and
    ``found`` once a minute which clients have much computed again.

    What a daemon did not see to its end is unknown: when it begins to lead it takes contexts over from its
    controller, and when it ends, or leads no more, what is open is closed as unknown.
    """

    def __init__(self, found: Callable[[str], None] = _ignore) -> None:
        self.on_verdict: list[Callable[[Verdict], None]] = []
        self._latest: deque[Verdict] = deque(maxlen=_MOST_LATEST)
        self._ledger = RegretLedger(self._publish)
        self._is_awake = False
        self._found, self._recomputing = found, Recomputing()

    @property
    def sums(self) -> Sums:
        return self._ledger.sums

    def lead(self, programs: Iterable[Program], now_ns: int) -> None:
        self._is_awake = True
        self._ledger.resume(programs, now_ns)

    def rest(self, now_ns: int) -> None:
        if self._is_awake:
            self._ledger.close(now_ns)
        self._is_awake = False

    def event(self, event: Event, now_ns: int) -> None:
        if self._is_awake:
            self._ledger.event(event, now_ns)

    def tick(self, now_ns: int) -> None:
        if self._is_awake:
            self._ledger.tick(now_ns)
            if (text := self._recomputing.look(self._ledger.sums, now_ns)) is not None:
                self._found(text)

    def command(self, command: Command, now_ns: int) -> None:
        if self._is_awake:
            self._ledger.command(command, now_ns)

    def config(self, text: str, now_ns: int) -> None:
        """Nothing: decisions say what they are."""

    def view(self) -> RegretView:
        sums = self._ledger.sums
        rows: dict[str, RegretRow] = {}
        for (kind, _, _), total in sums.totals.items():
            row = rows.setdefault(kind, RegretRow(kind=kind))
            row.count += total.count
            row.again_tokens += total.again_tokens
            row.cost_s += total.cost_s
            row.gain_s += total.gain_s
        for row in rows.values():
            row.judged = judged(sums, (row.kind,))
        said = sentences(sums)
        return RegretView(
            regret_ratio=sums.all.regret_ratio,
            again_tokens=sums.all.again_tokens,
            pins_lost=sums.pins_lost,
            sentences=said,
            note=note_on(said),
            least_judged=LEAST_JUDGED,
            kinds=sorted(rows.values(), key=lambda row: -row.count),
            latest=[Latest(verdict=each, happened=what_happened(each)) for each in reversed(self._latest)],
        )

    def _publish(self, verdict: Verdict) -> None:
        if verdict.is_rest:
            return
        self._latest.append(verdict)
        for notify in self.on_verdict:
            notify(verdict)
