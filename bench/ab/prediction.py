"""The simulator against the runs of the A/B: the same programs and arrivals, on a profile measured here.

Nothing of the runs enters the prediction: only the calibration, the scenario and the systems' configuration do.
Near saturation a run is chaotic: a step that takes 1% longer lets another program's context be evicted, and from
there on all is different. So each run is simulated several times with steps up to 2% shorter and longer; their mean
is the prediction, and their deviation is what no single run can be told better than.
"""

import statistics
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from ab.results import Cell, Row
from ab.scenario import Scenario
from ab.systems import PRIORITY
from controlplane.config import parse
from controlplane.core.model.errors import ConfigError
from controlplane.core.policies.presets import preset
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.lab.experiment import Experiment, Hardware
from controlplane.lab.sim.hardware import Profile
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.summary import Summary
from controlplane.lab.workload.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of both sides."""

    title: str
    real: Callable[[Row], float]
    predicted: Callable[[Summary], float]


FIGURES = (
    Figure(title="JCT mean (s)", real=lambda row: row.figures.jct_mean_s, predicted=lambda s: s.jct_mean_s),
    Figure(title="JCT p95 (s)", real=lambda row: row.figures.jct_p95_s, predicted=lambda s: s.jct_p95_s),
    Figure(title="TTFT mean (s)", real=lambda row: _mean_ttft(row), predicted=lambda s: s.ttft_mean_s),
    Figure(title="TPOT mean (s)", real=lambda row: row.figures.tpot_mean_s, predicted=lambda s: s.tpot_mean_s),
    Figure(
        title="output tok/s",
        real=lambda row: row.figures.output_tokens_per_s,
        predicted=lambda s: s.output_tokens_per_s,
    ),
    Figure(title="hit rate", real=lambda row: row.figures.hit_rate, predicted=lambda s: s.cache_hit_ratio),
)
DRAWS = 9
_VARIED = 0.02  # of a step's time, to either side


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """One run: (real, predicted) by the figure's title; and the deviation between its simulated runs."""

    cell: Cell
    values: dict[str, tuple[float, float]]
    deviations: dict[str, float]

    def error_ratio(self, title: str) -> float:
        real, predicted = self.values[title]
        return predicted / real - 1 if real else 0.0


def predict(rows: Sequence[Row], scenario: Scenario, profile: Profile, draws: int = DRAWS) -> list[Prediction]:
    """Simulate each run of the scenario ``draws`` times."""
    slowed = [profile.slowed(ratio) for ratio in slowings(draws)]
    found = []
    for row in rows:
        cell = row.cell
        runs = [spec_of(scenario, one, rate=cell.rate, seed=cell.seed, toml=row.toml) for one in slowed]
        summaries = [simulate(run).summary for run in runs]
        values, deviations = {}, {}
        for figure in FIGURES:
            if not figure.real(row):  # older runs did not note it
                continue
            drawn = [figure.predicted(summary) for summary in summaries]
            values[figure.title] = (figure.real(row), statistics.mean(drawn))
            deviations[figure.title] = statistics.stdev(drawn) if len(drawn) > 1 else 0.0
        found.append(Prediction(cell=row.cell, values=values, deviations=deviations))
    return found


def slowings(draws: int) -> list[float]:
    """By how much the steps of each draw are slowed: evenly from -2% to +2%; of one draw not at all."""
    if draws == 1:
        return [1.0]
    return [1 - _VARIED + 2 * _VARIED * number / (draws - 1) for number in range(draws)]


def spec_of(scenario: Scenario, profile: Profile, *, rate: float, seed: int, toml: str) -> Experiment:
    """One run of the A/B on hardware with that profile, simulated; ``toml`` as a system has it."""
    config, shape = parse(tomllib.loads(toml)) if toml else None, scenario.engine
    # Stock has nobody who would take silence for an end.
    reporting = scenario if config else replace(scenario, telemetry=Telemetry.FULL)
    return Experiment(
        workload=reporting.described(),
        trace=scenario.workload(seed),
        arrival=Poisson(rate),
        hardware=Hardware(
            pool_tokens=shape.pool_tokens,
            block_tokens=shape.server.block_tokens,
            chunk_tokens=shape.chunk_tokens,
            max_context_tokens=shape.context_tokens,
        ),
        profile=profile,
        preset=config.policies if config else preset("fcfs"),
        rules=config.control if config else ControlRules(),
        seed=seed,
    )


def chosen(rows: Sequence[Row], scenario: Scenario) -> list[Row]:
    """The finished runs of the scenario. Raises ``ConfigError`` where there are none."""
    mine = [row for row in rows if row.cell.scenario == scenario.digest]
    mine = [row for row in mine if row.cell.system != PRIORITY]  # the engine model takes no such numbers
    if not mine:
        raise ConfigError(f"no run of scenario {scenario.digest} is in the results: {scenario}")
    return sorted(mine, key=lambda row: (row.cell.rate, row.cell.seed, row.cell.system))


def show(predictions: Sequence[Prediction]) -> None:
    """Print each run, then the errors by figure."""
    print("real | predicted ± its deviation (error)")
    for one in predictions:
        print(f"{one.cell.system} at {one.cell.rate:g}/s, seed {one.cell.seed}")
        for title, (real, predicted) in one.values.items():
            found = f"{real:.3g} | {predicted:.3g} ± {one.deviations[title]:.2g}"
            print(f"  {title:14} {found} ({one.error_ratio(title):+.1%})")
    for title in (figure.title for figure in FIGURES):
        errors = [one.error_ratio(title) for one in predictions if title in one.values]
        if not errors:
            continue
        worst, usual = max(map(abs, errors)), statistics.mean(map(abs, errors))
        signed = statistics.mean(errors)
        print(f"{title}: off by {usual:.1%} on average, {worst:.1%} at worst, {signed:+.1%} with its sign")


def _mean_ttft(row: Row) -> float:
    return statistics.mean(ttft for turns in row.ttft_s for ttft in turns)
