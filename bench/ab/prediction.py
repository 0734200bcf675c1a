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
from rich.console import Console
from rich.table import Table

from ab.results import RUN, Cell, Row
from ab.scenario import Scenario
from ab.systems import PRIORITY
from controlplane.config import parse
from controlplane.core.control import ControlRules
from controlplane.core.errors import ConfigError
from controlplane.core.presets import preset
from controlplane.lab.experiment import Experiment, Hardware
from controlplane.lab.sim.profile import Profile
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
    Figure(
        title="output tok/s",
        real=lambda row: row.figures.output_tokens_per_s,
        predicted=lambda s: s.output_tokens_per_s,
    ),
    Figure(title="hit rate", real=lambda row: row.figures.hit_rate, predicted=lambda s: s.cache_hit_ratio),
)
_JCT = FIGURES[0]
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
    telling = scenario if config else replace(scenario, telemetry=Telemetry.FULL)
    return Experiment(
        workload=telling.described(),
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
    mine = [row for row in rows if row.cell.purpose == RUN and row.cell.scenario == scenario.digest]
    mine = [row for row in mine if row.cell.system != PRIORITY]  # the engine model takes no such numbers
    if not mine:
        raise ConfigError(f"no run of scenario {scenario.digest} is in the results: {scenario}")
    return sorted(mine, key=lambda row: (row.cell.rate, row.cell.seed, row.cell.system))


def show(predictions: Sequence[Prediction]) -> None:
    """Each run, then the errors by figure and whether systems rank alike."""
    table = Table("programs/s", "seed", "system", *(one.title for one in FIGURES))
    for one in predictions:
        columns = []
        for figure in FIGURES:
            real, predicted = one.values[figure.title]
            deviation = one.deviations[figure.title]
            columns.append(f"{real:.3g} | {predicted:.3g} ± {deviation:.2g} ({one.error_ratio(figure.title):+.1%})")
        table.add_row(f"{one.cell.rate:g}", str(one.cell.seed), one.cell.system, *columns)
    console = Console(width=160, highlight=False)
    console.print(table)
    for figure in FIGURES:
        errors = [abs(one.error_ratio(figure.title)) for one in predictions]
        signed = statistics.mean(one.error_ratio(figure.title) for one in predictions)
        console.print(
            f"{figure.title}: off by {statistics.mean(errors):.1%} on average, {max(errors):.1%} at worst, "
            f"{signed:+.1%} with its sign"
        )
    same, pairs, told = ranking(predictions)
    console.print(
        f"systems rank alike in {same} of {pairs} pairs whose real mean JCTs differ by more than the error"
    )
    for line in told:
        console.print(f"  {line}")


def ranking(predictions: Sequence[Prediction]) -> tuple[int, int, list[str]]:
    """Pairs of systems at one rate and seed that rank alike, all such pairs, and those that do not.

    A pair counts where the real gap is larger than the worst error of the mean JCT at that rate and seed.
    """
    same, pairs, told = 0, 0, []
    for rate, seed in sorted({(one.cell.rate, one.cell.seed) for one in predictions}):
        group = [one for one in predictions if (one.cell.rate, one.cell.seed) == (rate, seed)]
        worst = max(abs(one.error_ratio(_JCT.title)) for one in group)
        for number, first in enumerate(group):
            for second in group[number + 1 :]:
                (a, a_said), (b, b_said) = first.values[_JCT.title], second.values[_JCT.title]
                if abs(a - b) / min(a, b) <= worst:
                    continue
                pairs += 1
                if (a < b) == (a_said < b_said):
                    same += 1
                else:
                    told.append(
                        f"not alike: {first.cell.system} and {second.cell.system} at {rate:g}/s, seed {seed}"
                    )
    return same, pairs, told


def _mean_ttft(row: Row) -> float:
    return statistics.mean(ttft for turns in row.ttft_s for ttft in turns)
