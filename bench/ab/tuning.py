"""The best static window: the one with the lowest mean JCT on seeds that are used for nothing else.

On the engine a window takes minutes a seed and rate; the simulator tells in seconds which ones are worth it.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product

from rich.console import Console
from rich.table import Table

from ab.prediction import spec_of
from ab.results import TUNE, Row
from ab.scenario import Scenario
from ab.systems import System
from controlplane.lab.compare.rows import JCT, Cell, best_of
from controlplane.lab.compare.terminal import marked
from controlplane.lab.sim.profile import Profile
from controlplane.lab.simulate import simulate

_PREFIX = "static-"


def window_of(row: Row) -> int:
    """The window of a static system's row; 0 for another system's."""
    name = row.cell.system
    return int(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else 0


def mean_jcts(rows: Sequence[Row], scenario: str) -> dict[float, dict[int, float]]:
    """By rate and window, over the tuning seeds that every window of the rate has been run with."""
    found: dict[float, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if (row.cell.purpose, row.cell.scenario) == (TUNE, scenario) and window_of(row):
            found[row.cell.rate][window_of(row)][row.cell.seed] = row.figures.jct_mean_s
    means = {}
    for rate, windows in found.items():
        seeds = set.intersection(*(set(by_seed) for by_seed in windows.values()))
        if seeds:
            means[rate] = {w: statistics.mean(windows[w][seed] for seed in seeds) for w in sorted(windows)}
    return means


def best_window(means: dict[float, dict[int, float]], rate: float) -> int | None:
    """The best at that rate, or at the nearest one that was tuned; None where nothing was."""
    if not means:
        return None
    nearest = min(means, key=lambda tuned: (abs(tuned - rate), tuned))
    return min(means[nearest], key=lambda window: (means[nearest][window], window))


def simulated_means(
    scenario: Scenario,
    profile: Profile,
    *,
    rates: Sequence[float],
    seeds: Sequence[int],
    systems: Sequence[System],
) -> dict[float, dict[str, float]]:
    """Simulated mean JCTs in seconds, by rate and system, over the seeds; on all CPUs."""
    cells = list(product(rates, systems, seeds))
    with ProcessPoolExecutor(scenario.cpus) as workers:
        jcts = list(workers.map(partial(_simulated_jct_s, scenario, profile), cells))
    found: dict[float, dict[str, list[float]]] = {rate: defaultdict(list) for rate in rates}
    for (rate, system, _), jct_s in zip(cells, jcts, strict=True):
        found[rate][system.name].append(jct_s)
    return {rate: {name: statistics.mean(each) for name, each in found[rate].items()} for rate in rates}


def _simulated_jct_s(scenario: Scenario, profile: Profile, cell: tuple[float, System, int]) -> float:
    rate, system, seed = cell
    spec = spec_of(scenario, profile, rate=rate, seed=seed, toml=system.toml)
    return simulate(spec).summary.jct_mean_s


def show(means: Mapping[float, Mapping[str, float]], seeds: Iterable[int]) -> None:
    """A line for each rate; the best is marked."""
    names = list(next(iter(means.values())))
    table = Table("programs/s", *names)
    for rate, by_name in sorted(means.items()):
        best = best_of(by_name, JCT)
        cells = (Cell(text=f"{by_name[name]:.1f}", best=name == best) for name in names)
        table.add_row(f"{rate:g}", *marked(cells))
    console = Console(highlight=False)
    console.print(table)
    console.print(f"simulated mean JCT in seconds, over seeds {', '.join(map(str, seeds))}; * the best")
