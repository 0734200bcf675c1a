"""The best static window: the one with the lowest mean JCT on seeds that are used for nothing else."""

import statistics
from collections import defaultdict
from collections.abc import Sequence

from ab.results import TUNE, Row

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
