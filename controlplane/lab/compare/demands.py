"""What is asked of the subject in every case of a grid, and each case that falls short of it.

Below saturation nobody needs control, so that it must cost nothing. In every case its mean is to be near that of
the best preset that a node can run, and not far from the clairvoyant's. That is not to be bought with the slowest
programs, with fairness, with the time until all is done, or with the wait for a first token.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controlplane.lab.compare.cases import CLAIRVOYANT, Case
from controlplane.lab.compare.rows import JCT, SUBJECT
from controlplane.lab.compare.words import Match

_P95, _JAIN, _MAKESPAN, _FIRST_TOKEN = "jct_p95_s", "jain_index", "makespan_s", "ttft_p99_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The subject's ``figure`` over that of another preset, and how much of it is allowed.

    ``allowed``: at most that; below 1, where more is better, at least that. ``other``: whose figure is below, in a
    case and with the baseline; empty: nothing is asked there; the subject itself where nothing is better.
    """

    title: str  # "{baseline}" in it is filled in
    figure: str = JCT
    allowed: float
    median: float = 0.0  # allowed in the median of the cases; 0: any
    other: Callable[[Case, str], str] = lambda case, baseline: case.best or SUBJECT

    @property
    def is_floor(self) -> bool:
        return self.allowed < 1

    @property
    def words(self) -> str:
        """What is allowed."""
        median = f", median {self.median}" if self.median else ""
        return f"{'≥' if self.is_floor else '≤'} {self.allowed}{median}"


# What the project set out for. What falls short of it is listed, and not excused.
DEMANDS = (
    Demand(
        title="mean JCT over {baseline}'s, below saturation",
        allowed=1.03,
        other=lambda case, baseline: baseline if case.is_light else "",
    ),
    Demand(title="mean JCT over that of the best preset", allowed=1.05),
    Demand(
        title=f"mean JCT over the {CLAIRVOYANT}'s",
        allowed=1.8,
        median=1.3,
        other=lambda case, baseline: CLAIRVOYANT,
    ),
    Demand(title="p95 of JCT over that of the preset with the best mean", figure=_P95, allowed=1.1),
    Demand(
        title="p95 of JCT over the least of any preset",
        figure=_P95,
        allowed=1.1,
        other=lambda case, baseline: case.best_by(_P95) or SUBJECT,
    ),
    Demand(title="Jain's index over that of the preset with the best mean", figure=_JAIN, allowed=0.9),
    Demand(
        title="Jain's index over the greatest of any preset",
        figure=_JAIN,
        allowed=0.9,
        other=lambda case, baseline: case.best_by(_JAIN) or SUBJECT,
    ),
    Demand(
        title="makespan over {baseline}'s", figure=_MAKESPAN, allowed=1.02, other=lambda case, baseline: baseline
    ),
    Demand(
        title="p99 of TTFT over {baseline}'s",
        figure=_FIRST_TOKEN,
        allowed=2.0,
        other=lambda case, baseline: baseline,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandResult:
    """A demand over all cases in which the two met. ``missed``: the worst first."""

    demand: Demand
    title: str
    ratios: Sequence[float]
    missed: Sequence[Match]

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def worst(self) -> float:
        return (min if self.demand.is_floor else max)(self.ratios)


def answers(found: Sequence[Case], baseline: str) -> list[DemandResult]:
    """Every demand that could be asked of some case."""
    answered = [_answer(demand, found, baseline) for demand in DEMANDS]
    return [answer for answer in answered if answer.ratios]


def _answer(demand: Demand, found: Sequence[Case], baseline: str) -> DemandResult:
    ratios, missed = [], []
    for case in found:
        other = demand.other(case, baseline)
        ratio = case.over(SUBJECT, other, demand.figure)
        if ratio is not None:
            ratios.append(ratio.value)
            beyond = ratio.value < demand.allowed if demand.is_floor else ratio.value > demand.allowed
            if beyond:
                section, load, figure = case.section, case.load, demand.figure
                missed.append(
                    Match(section=section, load=load, figure=figure, other=other, ratio=ratio, where=case.title)
                )
        elif other == SUBJECT and len(case.section.systems) > 1:
            ratios.append(1.0)
    missed.sort(key=lambda match: match.ratio.value, reverse=not demand.is_floor)
    return DemandResult(demand=demand, title=demand.title.format(baseline=baseline), ratios=ratios, missed=missed)
