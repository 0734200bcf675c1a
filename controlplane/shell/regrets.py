"""The daemon's regret ledger: it hears what happens and what is decided, and passes on each verdict."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from controlplane.core.commands import Command
from controlplane.core.events import Event
from controlplane.core.regret import RegretLedger, Sums, Verdict
from controlplane.core.types import Program

_MOST_LATEST = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretRow:
    """All verdicts of one kind, for the page."""

    kind: str
    count: int
    again_tokens: int
    cost_s: float
    gain_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretView:
    """What the page tells of regret. ``regret_ratio``: what gaps cost, over what they would have in hindsight."""

    regret_ratio: float
    again_tokens: int
    pins_lost: int
    kinds: list[RegretRow]
    latest: list[Verdict]  # the newest first


class Regrets:
    """A recorder of what happens while its daemon leads. Who is in ``heard`` is told of each verdict.

    What a daemon did not see to its end is unknown: when it begins to lead it takes contexts over from its
    controller, and when it ends, or leads no more, what is open is closed as unknown.
    """

    def __init__(self) -> None:
        self.heard: list[Callable[[Verdict], None]] = []
        self._latest: deque[Verdict] = deque(maxlen=_MOST_LATEST)
        self._book = RegretLedger(self._hear)
        self._is_awake = False

    @property
    def sums(self) -> Sums:
        """Of this life of the daemon."""
        return self._book.sums

    def lead(self, programs: Iterable[Program], now_ns: int) -> None:
        """The daemon decides from now on."""
        self._is_awake = True
        self._book.resume(programs, now_ns)

    def rest(self, now_ns: int) -> None:
        """It decides no more."""
        if self._is_awake:
            self._book.close(now_ns)
        self._is_awake = False

    def event(self, event: Event, now_ns: int) -> None:
        """Something happened."""
        if self._is_awake:
            self._book.event(event, now_ns)

    def tick(self, now_ns: int) -> None:
        """A decision was made; the commands follow."""
        if self._is_awake:
            self._book.tick(now_ns)

    def command(self, command: Command, now_ns: int) -> None:
        """Something was decided."""
        if self._is_awake:
            self._book.command(command, now_ns)

    def config(self, text: str, now_ns: int) -> None:
        """Nothing: decisions say what they are."""

    def view(self) -> RegretView:
        """For the page."""
        sums = self._book.sums
        rows: dict[str, list[float]] = {}
        for (kind, _, _), total in sums.totals.items():
            row = rows.setdefault(kind, [0, 0, 0.0, 0.0])
            for index, value in enumerate((total.count, total.again_tokens, total.cost_s, total.gain_s)):
                row[index] += value
        return RegretView(
            regret_ratio=sums.all.regret_ratio,
            again_tokens=sums.all.again_tokens,
            pins_lost=sums.pins_lost,
            kinds=[
                RegretRow(kind=kind, count=int(count), again_tokens=int(again), cost_s=cost_s, gain_s=gain_s)
                for kind, (count, again, cost_s, gain_s) in sorted(rows.items(), key=lambda row: -row[1][2])
            ],
            latest=list(reversed(self._latest)),
        )

    def _hear(self, verdict: Verdict) -> None:
        if verdict.is_rest:
            return
        self._latest.append(verdict)
        for told in self.heard:
            told(verdict)
