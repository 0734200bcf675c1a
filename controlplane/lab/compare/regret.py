"""How far each preset is from the best that is known, over all cases, and where the subject falls short."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from controlplane.core.model.errors import ConfigError
from controlplane.lab.compare.cases import CLAIRVOYANT, Case, cases
from controlplane.lab.compare.demands import DemandResult, answers
from controlplane.lab.compare.rows import JCT, SUBJECT, UNKNOWN, Grid
from controlplane.lab.compare.words import grid_caveats, plus_minus
from controlplane.lab.workload.interval import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A preset over all cases: medians and the worst of its ratios; None where there were none."""

    preset: str
    cases: int
    over_baseline: tuple[float, float] | None
    over_best: tuple[float, float] | None
    regret: tuple[float, float] | None
    over_bound: tuple[float, float] | None
    worst: str  # the case of the worst regret


def standings(found: Sequence[Case], presets: Iterable[str], baseline: str) -> list[Standing]:
    """Each preset's, in the given order."""
    return [_standing(found, preset, baseline) for preset in presets]


def _standing(found: Sequence[Case], preset: str, baseline: str) -> Standing:
    regrets = [(ratio.value, case) for case in found if (ratio := case.over(preset, CLAIRVOYANT)) is not None]
    worst = max(regrets, key=lambda pair: pair[0])[1].title if regrets else ""
    return Standing(
        preset=preset,
        cases=sum(bool(case.section.values(preset, case.load, JCT)) for case in found),
        over_baseline=_spread(case.over(preset, baseline) for case in found),
        over_best=_spread(_to_best(case, preset) for case in found),
        regret=_spread(case.over(preset, CLAIRVOYANT) for case in found),
        over_bound=_spread(case.over_bound(preset) for case in found),
        worst=worst,
    )


def _to_best(case: Case, preset: str) -> Interval | None:
    if preset == case.best:
        return Interval(value=1.0, low=1.0, high=1.0)
    return case.over(preset, case.best)


def _spread(ratios: Iterable[Interval | None]) -> tuple[float, float] | None:
    values = [ratio.value for ratio in ratios if ratio is not None]
    return (statistics.median(values), max(values)) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A part of the page: what it says, then a table or a list, either of which may be empty."""

    title: str
    says: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    items: Sequence[str] = ()


def sheets(grid: Grid, baseline: str) -> list[Sheet]:
    """The page in its order, with a table of each section.

    Raises ``ConfigError`` without a run that ended well.
    """
    found = cases(grid)
    if not found:
        raise ConfigError("a report needs a successful run")
    answered = answers(found, baseline)
    asked = [_asked(answered), *_missed(answered)] if answered else []
    return [_summary(grid, found, baseline), *asked, *_by_section(found, baseline), _notes(grid)]


def regret_title(grid: Grid) -> str:
    """The title of the page of regrets, with the number of runs."""
    return f"Penstock: regrets of {len(grid.rows):,} simulated runs"


def _summary(grid: Grid, found: Sequence[Case], baseline: str) -> Sheet:
    return Sheet(
        title="All cases",
        says=(
            f"{len(found)} cases: a workload on a hardware with one telemetry at one load. "
            f"Median and worst over them of each preset's mean JCT over that of {baseline}, of the best preset, of "
            f"the {CLAIRVOYANT} (its regret), and over the bound that no order can beat."
        ),
        header=("preset", "cases", *_ratios(baseline), "worst regret at"),
        rows=[_row(standing) for standing in standings(found, grid.presets, baseline)],
    )


def _row(standing: Standing) -> list[str]:
    spreads = (standing.over_baseline, standing.over_best, standing.regret, standing.over_bound)
    cells = [UNKNOWN if spread is None else f"{spread[0]:.2f}, {spread[1]:.2f}" for spread in spreads]
    return [standing.preset, str(standing.cases), *cells, standing.worst or UNKNOWN]


def _asked(answered: Sequence[DemandResult]) -> Sheet:
    return Sheet(
        title=f"What is asked of {SUBJECT}",
        says="In every case. Where it is the best preset itself, its ratio to that is 1.",
        header=("asked", "allowed", "missed", "median", "worst"),
        rows=[
            [
                answer.title,
                answer.demand.words,
                f"{len(answer.missed)} of {len(answer.ratios)}",
                f"{answer.median:.2f}",
                f"{answer.worst:.2f}",
            ]
            for answer in answered
        ],
    )


def _missed(answered: Sequence[DemandResult]) -> Iterator[Sheet]:
    for answer in answered:
        if answer.missed:
            yield Sheet(
                title=f"Where {SUBJECT} loses: {answer.title}",
                says=f"Allowed is {answer.demand.words}. The worst first:",
                items=[match.text for match in answer.missed],
            )


def _by_section(found: Sequence[Case], baseline: str) -> Iterator[Sheet]:
    for section in dict.fromkeys(case.section for case in found):
        rows = []
        for case in (case for case in found if case.section is section):
            for preset in section.presets:
                ratios = (case.over(preset, baseline), case.over(preset, case.best), case.over(preset, CLAIRVOYANT))
                rows.append(
                    [
                        case.load.title + (f" ({case.load_ratio:.2g})" if case.load_ratio else ""),
                        preset + (" (best)" if preset == case.best else ""),
                        plus_minus(section.interval(preset, case.load, JCT), JCT),
                        *map(_ratio, ratios),
                        _ratio(case.over_bound(preset)),
                    ]
                )
        yield Sheet(
            title=section.title,
            says="Behind each load in brackets: times the rate that no order could sustain more of.",
            header=("load", "preset", "mean JCT (s)", *_ratios(baseline)),
            rows=rows,
        )


def _notes(grid: Grid) -> Sheet:
    return Sheet(title="Before you believe a figure", says="", items=grid_caveats(grid))


def _ratios(baseline: str) -> tuple[str, ...]:
    return f"over {baseline}", "over the best", "regret", "over the bound"


def _ratio(ratio: Interval | None) -> str:
    return UNKNOWN if ratio is None else str(ratio)
