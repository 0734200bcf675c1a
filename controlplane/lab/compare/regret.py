"""How far each preset is from the best that is known: its mean JCT over that of others, a case at a time.

A case is a workload on a hardware with one telemetry at one load. Ratios are taken seed by seed: to the baseline,
to the best of the presets that a node can run, to the clairvoyant, and to the bound, which no order can beat. A
ratio to the clairvoyant is a preset's regret: what it loses by not knowing the future.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from controlplane.core.errors import ConfigError
from controlplane.core.presets import FORESEEING
from controlplane.lab.compare.rows import JCT, SUBJECT, UNKNOWN, Grid, Load, Section
from controlplane.lab.compare.words import Match, grid_caveats, plus_minus
from controlplane.lab.workload.interval import Interval, ratio_interval

BOUND = "bound_jct_mean_s"
CLAIRVOYANT = next(iter(FORESEEING))
# Below saturation nobody needs control, so that it must cost nothing; above it a preset is to be near the best.
LIGHT_LOSS = 1.03
HEAVY_LOSS = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load of one section. ``load_ratio``: times the saturation rate; 0 where that is not known."""

    section: Section
    load: Load
    load_ratio: float
    best: str

    @property
    def title(self) -> str:
        load = f", load {self.load_ratio:.2g}" if self.load_ratio else ""
        return f"{self.section.title}, {self.load.title}{load}"

    def over(self, preset: str, other: str) -> Interval | None:
        """Of mean JCT; of a preset over itself none."""
        return None if preset == other or not other else self.section.ratio(preset, other, self.load, JCT)

    def over_bound(self, preset: str) -> Interval | None:
        """How many times the bound it is; None where that was not computed."""
        found = self.section.values(preset, self.load, JCT)
        least = self.section.values(preset, self.load, BOUND)
        return ratio_interval([(value, least[seed]) for seed, value in found.items()])


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


def cases(grid: Grid) -> list[Case]:
    """All of them, in the order of the grid."""
    return [
        Case(
            section=section,
            load=load,
            load_ratio=_load_ratio(section, load),
            best=section.best(load, JCT, section.systems) if section.systems else "",
        )
        for section in grid.sections
        for load in section.loads
    ]


def losses(found: Iterable[Case], subject: str, baseline: str) -> list[Match]:
    """Where the subject loses, the worst first: to the baseline below saturation, to the best from there on."""
    lost = []
    for case in found:
        light = 0 < case.load_ratio < 1
        other, most = (baseline, LIGHT_LOSS) if light else (case.best, HEAVY_LOSS)
        ratio = case.over(subject, other)
        if ratio is not None and ratio.value > most:
            lost.append(
                Match(section=case.section, load=case.load, figure=JCT, other=other, ratio=ratio, where=case.title)
            )
    return sorted(lost, key=lambda match: -match.ratio.value)


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


def _load_ratio(section: Section, load: Load) -> float:
    if load.closed:
        return 0.0
    rates = {float(row["saturation_rate"]) for preset in section.presets for row in section.rows(preset, load)}
    saturation = max(rates, default=0.0)
    return load.size / saturation if saturation else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A part of the page: what it says, then a table or a list, either of which may be empty."""

    title: str
    says: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    items: Sequence[str] = ()


def sheets(grid: Grid, baseline: str) -> list[Sheet]:
    """The whole page, in its order. Raises ``ConfigError`` without a run that ended well."""
    found = cases(grid)
    if not found:
        raise ConfigError("a report needs a successful run")
    return [_summary(grid, found, baseline), _lost(found, baseline), *_by_section(found, baseline), _notes(grid)]


def regret_title(grid: Grid) -> str:
    """The title of the page of regrets, with the number of runs."""
    return f"Penstock: regrets of {len(grid.rows):,} simulated runs"


def _summary(grid: Grid, found: Sequence[Case], baseline: str) -> Sheet:
    return Sheet(
        title="All cases",
        says=(
            f"{len(found)} cases: a workload on a hardware with one telemetry at one load. Median and worst over "
            f"them of each preset's mean JCT over that of {baseline}, of the best preset, of the {CLAIRVOYANT} "
            "(its regret), and over the bound that no order can beat."
        ),
        header=("preset", "cases", *_ratios(baseline), "worst regret at"),
        rows=[_told(standing) for standing in standings(found, grid.presets, baseline)],
    )


def _told(standing: Standing) -> list[str]:
    spreads = (standing.over_baseline, standing.over_best, standing.regret, standing.over_bound)
    told = [UNKNOWN if spread is None else f"{spread[0]:.2f}, {spread[1]:.2f}" for spread in spreads]
    return [standing.preset, str(standing.cases), *told, standing.worst or UNKNOWN]


def _lost(found: Sequence[Case], baseline: str) -> Sheet:
    lost = losses(found, SUBJECT, baseline)
    return Sheet(
        title=f"Where {SUBJECT} loses",
        says=(
            f"Cases in which its mean JCT is more than {LIGHT_LOSS} times {baseline}'s below saturation, or more "
            f"than {HEAVY_LOSS} times that of the best preset from there on: {len(lost)} of {len(found)}, the "
            "worst first."
        ),
        items=[match.text for match in lost],
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
