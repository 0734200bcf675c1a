"""A grid case by case: a workload on a hardware with one telemetry at one load, and ratios of presets in it.

Ratios are taken seed by seed: to the baseline, to the best of the presets that a node can run, to the clairvoyant,
and to the bound, which no order can beat. A ratio to the clairvoyant is a preset's regret: what it loses by not
knowing the future.
"""

from dataclasses import dataclass

from controlplane.core.policies.presets import FORESEEING
from controlplane.lab.compare.rows import JCT, Grid, LoadLevel, Section
from controlplane.lab.workload.interval import Interval, ratio_interval

BOUND = "bound_jct_mean_s"
CLAIRVOYANT = next(iter(FORESEEING))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load of one section.

    ``load_ratio``: times the saturation rate; 0 where that is not known. ``best``: whose mean JCT is least; empty
    where all are alike.
    """

    section: Section
    load: LoadLevel
    load_ratio: float
    best: str

    @property
    def title(self) -> str:
        load = f", load {self.load_ratio:.2g}" if self.load_ratio else ""
        return f"{self.section.title}, {self.load.title}{load}"

    @property
    def is_light(self) -> bool:
        """Whether it is known to be below saturation."""
        return 0 < self.load_ratio < 1

    def best_by(self, figure: str) -> str:
        """Whose ``figure`` is best of the presets that a node can run."""
        return self.section.best(self.load, figure, self.section.systems) if self.section.systems else ""

    def over(self, preset: str, other: str, figure: str = JCT) -> Interval | None:
        """Of a figure; of a preset over itself none."""
        return None if preset == other or not other else self.section.ratio(preset, other, self.load, figure)

    def over_bound(self, preset: str) -> Interval | None:
        """How many times the bound it is; None where that was not computed."""
        found = self.section.values(preset, self.load, JCT)
        least = self.section.values(preset, self.load, BOUND)
        return ratio_interval([(value, least[seed]) for seed, value in found.items()])


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


def _load_ratio(section: Section, load: LoadLevel) -> float:
    if load.closed:
        return 0.0
    rates = {float(row["saturation_rate"]) for preset in section.presets for row in section.rows(preset, load)}
    saturation = max(rates, default=0.0)
    return load.size / saturation if saturation else 0.0
