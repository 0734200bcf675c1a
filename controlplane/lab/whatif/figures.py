"""The figures that are compared, of what was measured and of what was simulated, and how sure a change of them is.

A run's programs meet in one engine, and who comes a second earlier may change what everyone gets. So an alternative
is simulated several times, the recorded arrivals and tool times a little shifted, and beside it the recorded
decisions with the same shifts. The interval draws from these pairs, and from the programs, each with its turns.

That is how sure the mean change is. Who switches sees one run before and one after it, whose p95 of the TTFT may
differ by a third from that of a run shifted by a thousandth: what to expect has an interval of its own.

A change of a time is above -100% and a share stays between 0 and 1, so the intervals stay there, too: percentiles
of a bootstrap do by themselves, and what else widens them is applied to ratios as a factor
(``lab.workload.interval`` has the sources) and cut at the ends of a share.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite, nan

import numpy as np
from numpy.typing import NDArray

from controlplane.lab.workload.interval import Interval, drawn_interval, ratio_interval
from controlplane.lab.workload.records import ProgramRecord, TurnRecord

DRAWS = 400
COPY = "~#"  # between a program's name and the number of its copy
_NS = 1e9
_Floats = NDArray[np.float64]


Figures = Mapping[str, float]
"""Of one run, or the means of several, by ``NAMES``. A figure that nothing was measured for is NaN."""

LABELS = {
    "mean_jct_s": "JCT mean (s)",  # of programs that were seen whole
    "p95_ttft_s": "TTFT p95 (s)",  # of turns, from when they were sent
    "hit_rate": "cache hit rate",  # cached tokens / prompt tokens
    "makespan_s": "makespan (s)",  # from the first arrival to the last end
}
NAMES = tuple(LABELS)
SHARES = ("hit_rate",)  # whose change is a difference; that of a time is a ratio less 1


def change(name: str, before: float, after: float) -> float:
    """From one value of the figure to another one."""
    if name in SHARES:
        return after - before
    return after / before - 1 if before else nan


def moved(name: str, value: float, by: float) -> float:
    """The value after such a change; NaN where it is not known."""
    if not isfinite(by):
        return nan
    return min(1.0, max(0.0, value + by)) if name in SHARES else value * (1 + by)


class RunFigures:
    """A run's programs as arrays. Copies of a program count with it; an absent one has nothing.

    ``whole``: whose JCT counts; ``warm``: programs whose first turn went on from one that nobody saw, so that
    what it found in the cache is not known.
    """

    def __init__(
        self,
        programs: Sequence[ProgramRecord],
        turns: Sequence[TurnRecord],
        *,
        names: Sequence[str],
        whole: Collection[str],
        warm: Collection[str],
    ) -> None:
        place = {name: index for index, name in enumerate(names)}
        self.failed = sum(program.failed for program in programs)
        self._jct_s, self._ended = np.zeros(len(names)), np.zeros(len(names))
        self._cached, self._prompts = np.zeros(len(names)), np.zeros(len(names))
        for program in programs:
            base = program.program_id.partition(COPY)[0]
            if base in whole and not program.failed:
                self._jct_s[place[base]] += program.completion_ns / _NS
                self._ended[place[base]] += 1
        ttft_s, owners = [], []
        for turn in turns:
            base = turn.program_id.partition(COPY)[0]
            if turn.error or (turn.index == 0 and base in warm):
                continue
            ttft_s.append((turn.first_token_ns - turn.queued_ns) / _NS)
            owners.append(place[base])
            self._cached[place[base]] += turn.cached_tokens
            self._prompts[place[base]] += turn.prompt_tokens
        order = np.argsort(ttft_s, kind="stable")
        self._ttft_s: _Floats = np.asarray(ttft_s, dtype=np.float64)[order]
        self._owners = np.asarray(owners, dtype=np.int64)[order]
        begin_ns = min((program.arrived_ns for program in programs), default=0)
        self._makespan_s = (max((program.ended_ns for program in programs), default=0) - begin_ns) / _NS
        self.programs = int(self._ended.sum())

    def figures(self, drawn: _Floats | None = None) -> Figures:
        """Of all programs once, or each as often as it was drawn."""
        weights = np.ones(len(self._ended)) if drawn is None else drawn
        return {
            "mean_jct_s": _share(np.dot(self._jct_s, weights), np.dot(self._ended, weights)),
            "p95_ttft_s": self._p95(weights),
            "hit_rate": _share(np.dot(self._cached, weights), np.dot(self._prompts, weights)),
            "makespan_s": self._makespan_s,
        }

    def _p95(self, weights: _Floats) -> float:
        """The smallest time that 95% of the turns do not exceed."""
        if not len(self._ttft_s):
            return nan
        counted = np.cumsum(weights[self._owners])
        if counted[-1] <= 0:
            return nan
        return float(self._ttft_s[min(int(np.searchsorted(counted, 0.95 * counted[-1])), len(counted) - 1)])


def mean_figures(outcomes: Sequence[RunFigures], drawn: _Floats | None = None) -> Figures:
    """The means over runs."""
    each = [outcome.figures(drawn) for outcome in outcomes]
    return {name: float(np.mean([one[name] for one in each])) for name in NAMES}


def changes(before: Sequence[RunFigures], after: Sequence[RunFigures], programs: int) -> dict[str, Interval]:
    """Of each figure how it changes from a run to its pair, in the mean, with the 95% interval of that mean."""

    def draw(rng: np.random.Generator) -> tuple[Figures, Figures]:
        pairs = rng.integers(0, len(before), len(before))
        weights = _programs(rng, programs)
        old, new = ([runs[index] for index in pairs] for runs in (before, after))
        return mean_figures(old, weights), mean_figures(new, weights)

    one, other = mean_figures(before), mean_figures(after)
    drawn = _drawn(draw)
    found = {name: drawn_interval(change(name, one[name], other[name]), drawn[name]) for name in NAMES}
    last = "makespan_s"  # whoever draws programs draws no other last end
    pairs = [(new.figures()[last], old.figures()[last]) for old, new in zip(before, after, strict=True)]
    ratio = ratio_interval(pairs) or Interval(value=nan, low=nan, high=nan)
    return found | {last: Interval(value=ratio.value - 1, low=ratio.low - 1, high=ratio.high - 1)}


def expected(
    before: Sequence[RunFigures],
    after: Sequence[RunFigures],
    programs: int,
    mean: Mapping[str, Interval],
    errors: Figures,
    measured: Figures,
) -> dict[str, Interval]:
    """The same changes as who switches sees them: of one run, on an engine that the replay does not quite match.

    The interval is that of a change from any run to any other one, no narrower than that of the ``mean``, and
    reaches on both sides at least as far as the replay of what was decided is off (``errors``): of a time by that
    factor, of a share by that difference, and no further than from what was ``measured`` to 0 or 1.
    """

    def draw(rng: np.random.Generator) -> tuple[Figures, Figures]:
        weights = _programs(rng, programs)
        old = before[int(rng.integers(len(before)))]
        return old.figures(weights), after[int(rng.integers(len(after)))].figures(weights)

    drawn, found = _drawn(draw), {}
    for name, at in mean.items():
        one = drawn_interval(at.value, drawn[name])
        less, more = _off(name, at.value, errors[name])
        low, high = (one.low, at.low, less), (one.high, at.high, more)
        widest = Interval(value=at.value, low=_least(low), high=-_least([-end for end in high]))
        shared = name in SHARES and isfinite(measured[name])
        found[name] = widest.within(-measured[name], 1 - measured[name]) if shared else widest
    return found


def _off(name: str, value: float, error: float) -> tuple[float, float]:
    """The change of ``value`` if the replay, which is off by ``error``, is as far off the one way and the other."""
    if not isfinite(error):
        return value, value
    if name in SHARES:
        return value - abs(error), value + abs(error)
    factor = max(1 + error, 1 / (1 + error)) if error > -1 else 1.0
    return (1 + value) / factor - 1, (1 + value) * factor - 1


def _drawn(draw: Callable[[np.random.Generator], tuple[Figures, Figures]]) -> dict[str, list[float]]:
    """The changes between what ``draw`` finds, many times; always the same ones."""
    rng = np.random.default_rng(0)
    pairs = [draw(rng) for _ in range(DRAWS)]
    return {name: [change(name, old[name], new[name]) for old, new in pairs] for name in NAMES}


def _least(ends: Sequence[float]) -> float:
    """Of those that are known."""
    return min((end for end in ends if isfinite(end)), default=nan)


def _programs(rng: np.random.Generator, count: int) -> _Floats:
    """How often each is drawn."""
    return rng.multinomial(count, np.full(count, 1 / count)).astype(np.float64)


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else nan
