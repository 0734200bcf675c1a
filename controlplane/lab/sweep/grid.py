"""A sweep's rows put together: for each workload on each hardware, presets by loads, with intervals over seeds."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controlplane.core.presets import FORESEEING, PRESETS
from controlplane.lab.report.compare import lower_is_better
from controlplane.lab.sweep.results import COSTS, Row
from controlplane.lab.workload.arrivals import Closed, parse_arrival
from controlplane.lab.workload.interval import Interval, mean_interval, ratio_interval


@dataclass(frozen=True, slots=True, order=True)
class Load:
    """How programs arrive. ``size``: programs a second where they do so openly, else programs at once."""

    closed: bool
    size: float
    arrival: str

    @property
    def title(self) -> str:
        if self.closed:
            return f"{self.size:g} at once"
        return f"{self.size:g}/s" + (f" by {self.arrival.rpartition(':')[2]}" if self.bursts else "")

    @property
    def bursts(self) -> bool:
        """Whether several arrive at one instant."""
        return self.arrival.startswith("burst:")


class Section:
    """One workload on one hardware, under open arrivals or closed ones. ``rows`` are of runs that ended well."""

    def __init__(self, workload: str, hardware: str, rows: Sequence[Row], telemetry: str = "") -> None:
        """``telemetry``: how much was told, where the grid has several kinds of that."""
        self.workload, self.hardware, self.telemetry = workload, hardware, telemetry
        self._rows: dict[tuple[str, Load], dict[str, Row]] = defaultdict(dict)
        for row in rows:
            self._rows[row["preset"], load_of(row)][row["seed"]] = row
        self.presets = _ordered({preset for preset, _ in self._rows})
        self.systems = [preset for preset in self.presets if preset not in FORESEEING]  # that a node can run
        self.loads = sorted({load for _, load in self._rows})
        self._values: dict[tuple[str, Load, str], dict[str, float]] = {}

    @property
    def closed(self) -> bool:
        """Whether a program arrives when another one ends."""
        return self.loads[0].closed

    @property
    def title(self) -> str:
        told = f", telemetry {self.telemetry}" if self.telemetry else ""
        return f"{self.workload} on {self.hardware}{told}" + (", closed arrivals" if self.closed else "")

    def rows(self, preset: str, load: Load) -> list[Row]:
        """One of each seed."""
        return list(self._rows.get((preset, load), {}).values())

    def values(self, preset: str, load: Load, figure: str) -> dict[str, float]:
        """The figure by seed. A run without a program that ended well has none but its counts."""
        key = (preset, load, figure)
        if key not in self._values:
            runs = self._rows.get((preset, load), {})
            self._values[key] = {
                seed: float(row[figure])
                for seed, row in runs.items()
                if figure.startswith(("programs_", "turns_")) or int(float(row["programs_ended"]))
            }
        return self._values[key]

    def interval(self, preset: str, load: Load, figure: str) -> Interval | None:
        """Its mean over seeds; None where there is none."""
        values = self.values(preset, load, figure)
        return mean_interval(list(values.values())) if values else None

    def ratio(self, above: str, below: str, load: Load, figure: str) -> Interval | None:
        """The figure of ``above`` over that of ``below``, seed by seed; None without a seed that both have."""
        ours, theirs = self.values(above, load, figure), self.values(below, load, figure)
        return ratio_interval([(value, theirs[seed]) for seed, value in ours.items() if seed in theirs])

    def best(self, load: Load, figure: str, among: Iterable[str] | None = None) -> str:
        """The preset whose mean is best, of those that a node can run; empty where fewer than two have one, or the
        figure has no better end.
        """
        lower = None if figure in COSTS else lower_is_better(figure)
        means = {
            preset: statistics.fmean(values.values())
            for preset in (self.systems if among is None else among)
            if (values := self.values(preset, load, figure))
        }
        if lower is None or len(means) < (2 if among is None else 1) or len(set(means.values())) == 1 < len(means):
            return ""
        return (min if lower else max)(means, key=lambda preset: means[preset])


class Grid:
    """All sections, and what was left out of them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        current = _current(rows)
        self.rows = [row for row in current if not row["error"]]
        self.wrong = [row for row in current if row["error"]]
        self.outdated = len(rows) - len(current)
        several = len({row["telemetry"] for row in self.rows}) > 1
        groups: dict[tuple[str, str, str, bool], list[Row]] = defaultdict(list)
        for row in self.rows:
            told = row["telemetry"] if several else ""
            groups[row["workload"], row["hardware"], told, load_of(row).closed].append(row)
        self.sections = [
            Section(workload, hardware, of, told) for (workload, hardware, told, _), of in groups.items()
        ]

    @property
    def presets(self) -> list[str]:
        """All that were run, in the order of ``penstock presets``."""
        return _ordered({row["preset"] for row in self.rows})

    @property
    def seeds(self) -> list[str]:
        """All that were run."""
        return sorted({row["seed"] for row in self.rows}, key=int)

    @property
    def codes(self) -> dict[tuple[str, str], int]:
        """How many rows there are of each code: its digest and its revision."""
        found: dict[tuple[str, str], int] = defaultdict(int)
        for row in self.rows:
            found[row["code"], row["revision"]] += 1
        return dict(found)


def load_of(row: Row) -> Load:
    """The load of a row."""
    arrival = parse_arrival(row["arrival"])
    if isinstance(arrival, Closed):
        return Load(True, arrival.n, row["arrival"])
    return Load(False, arrival.rate, row["arrival"])


def _current(rows: Sequence[Row]) -> list[Row]:
    """Rows of the parameters that were run last: what two sets of them gave makes no mean."""
    engine: dict[tuple[str, ...], str] = {}
    policies: dict[tuple[str, ...], str] = {}
    for row in rows:
        of_engine, _, of_preset = row["digest"].partition("-")
        engine[row["workload"], row["hardware"]] = of_engine
        policies[row["workload"], row["hardware"], row["preset"]] = of_preset
    last = {key: f"{engine[key[:2]]}-{of_preset}" for key, of_preset in policies.items()}
    return [row for row in rows if row["digest"] == last[row["workload"], row["hardware"], row["preset"]]]


def _ordered(presets: set[str]) -> list[str]:
    known = [name for name in PRESETS if name in presets]
    return known + sorted(presets - set(known))
