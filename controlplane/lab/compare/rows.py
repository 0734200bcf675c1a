"""What is compared: single runs in groups, and a sweep's rows in sections; and which figure of them is the best."""

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from controlplane.core.policies.presets import DEFAULT, FORESEEING, PRESETS
from controlplane.lab.workload.arrivals import Closed, parse_arrival
from controlplane.lab.workload.interval import Interval, mean_interval, ratio_interval
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.summary import ROWS

BASELINE = "fcfs"
SUBJECT = DEFAULT
EVEN_BAND = 0.02  # ratios so close to 1 are even: a repetition of a live run differs by as much
UNKNOWN = "–"
BETTER, SAME, WORSE = "better", "same", "worse"
JCT = "jct_mean_s"
RATIO = "ratio"  # of mean JCTs, to the baseline's
COSTS = ("cpu_s", "wall_s", "turns_per_cpu_min")  # of simulating; neither end of them is the better one
LABELS = {name: label.strip() for name, label, _ in ROWS} | {"turns_per_cpu_min": "simulated turns per CPU-minute"}
_ROWS = {name: (label, form) for name, label, form in ROWS}

_HIGHER_IS_BETTER = ("steps_", "output_", "cache_hit", "goodput_", "ttft_within", "jain_", "pool_decode")
_NEITHER = (
    "programs_ended",
    "turns_ended",
    "makespan",
    "pool_prefill",
    "pool_caching",
    "pool_unused",
    "loaded",
    "moves",
    "routed_new",
    "routed_stay",
    "routed_migrate",
    "routed_reprefill",
    "routed_moved",
)
_NEEDS_IDEAL = ("goodput_", "jain_")
_NEEDS_ACCOUNT = ("pool_", "loaded", "moves", "ttl_", "recomputed", "retractions")
_NEEDS_CONTENTION = "tool_slowdown"
_NEEDS_ENGINES = "routed_"


Row = dict[str, str]  # of a sweep's results


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs under the same arrivals."""

    arrival: str
    rate: float
    runs: tuple[RunResult, ...]
    routed: bool = False  # some run of the comparison had several engines

    @property
    def title(self) -> str:
        return f"{self.rate:g} programs/s" if self.rate else self.arrival or "unknown arrivals"

    @property
    def head(self) -> str:
        """The title, as short as a column is wide."""
        return f"{self.rate:g}/s" if self.rate else self.title


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """One figure as printed. ``best``: nothing beside it has a better one."""

    text: str
    best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure over the runs of a group, in their order."""

    label: str
    cells: tuple[TableCell, ...]

    @property
    def says_something(self) -> bool:
        """Whether there is another figure in it than zero."""
        return any(re.search("[1-9]", cell.text) for cell in self.cells)


def group_runs(runs: Sequence[RunResult]) -> list[Group]:
    """Groups by arrivals, lowest rate first; within one the baseline first, then as given."""
    groups: dict[tuple[float, str], list[RunResult]] = {}
    routed = any(run.summary.is_routed for run in runs)
    for run in runs:
        groups.setdefault((run.rate, run.arrival), []).append(run)
    return [
        Group(
            arrival=arrival,
            rate=rate,
            runs=tuple(sorted(members, key=lambda run: name_of(run) != BASELINE)),
            routed=routed,
        )
        for (rate, arrival), members in sorted(groups.items())
    ]


def name_of(run: RunResult) -> str:
    """What a run is called beside others: its preset, or its label where it has none."""
    return run.preset or run.label


def column_names(group: Group) -> list[str]:
    """A name for each run of the group; the seed tells repeated ones apart."""
    names = [name_of(run) for run in group.runs]
    return [
        f"{name}, seed {run.seed}" if names.count(name) > 1 else name
        for name, run in zip(names, group.runs, strict=True)
    ]


def mean_jct_s(group: Group, preset: str) -> float | None:
    """Mean JCT of the preset's runs in the group, over their seeds; None without a program that ended."""
    means = [run.summary.jct_mean_s for run in group.runs if name_of(run) == preset]
    known = [mean for mean in means if mean]
    return sum(known) / len(known) if known else None


def jct_ratio(group: Group) -> float | None:
    """Mean JCT of the subject over that of the baseline; below 1 the subject is faster. None: not comparable."""
    ours, theirs = mean_jct_s(group, SUBJECT), mean_jct_s(group, BASELINE)
    return ours / theirs if ours is not None and theirs is not None else None


def telemetries(runs: Sequence[RunResult]) -> list[str]:
    """What the programs told of themselves, by the runs that say so: more than one are not to be compared."""
    return sorted({telemetry for run in runs if (telemetry := run.facts.get("telemetry"))})


def lines(group: Group) -> list[Line]:
    """Every figure of the group, the ratio of mean JCT to the baseline's first."""
    figures = [name for name, _, _ in ROWS if group.routed or not name.startswith(_NEEDS_ENGINES)]
    return [line_of(group, figure) for figure in (RATIO, *figures)]


def line_of(group: Group, figure: str) -> Line:
    """One figure of the group; ``RATIO``: its mean JCTs over the baseline's."""
    return _ratio_line(group) if figure == RATIO else _line(group, figure, *_ROWS[figure])


def standing(ratio: float, figure: str = JCT) -> str:
    """What a ratio of figures says of the upper one: better, same or worse than the lower one."""
    if abs(ratio - 1) <= EVEN_BAND:
        return SAME
    return BETTER if (ratio < 1) == bool(lower_is_better(figure)) else WORSE


def lower_is_better(field: str) -> bool | None:
    """Which end of a figure is the better one; None where neither is."""
    return None if field.startswith((*_NEITHER, *COSTS)) else not field.startswith(_HIGHER_IS_BETTER)


def best_of(values: Mapping[str, float], figure: str) -> str:
    """Whose value is best; empty where the figure has no better end, or all of several are alike."""
    lower = lower_is_better(figure)
    if lower is None or not values or len(set(values.values())) == 1 < len(values):
        return ""
    return (min if lower else max)(values, key=lambda name: values[name])


def _line(group: Group, field: str, label: str, form: str) -> Line:
    values: list[float | None] = []
    for run in group.runs:
        known = not field.startswith(_NEEDS_IDEAL) or any(p.ideal_ns for p in run.programs)
        known = known and (not field.startswith(_NEEDS_ACCOUNT) or run.summary.is_accounted)
        known = known and (not field.startswith(_NEEDS_CONTENTION) or run.summary.tool_slowdown_ratio > 0)
        known = known and (not field.startswith(_NEEDS_ENGINES) or run.summary.is_routed)
        values.append(getattr(run.summary, field) if known else None)
    texts = [UNKNOWN if value is None else form.format(value) for value in values]
    present = [value for value in values if value is not None]
    lower = lower_is_better(field)
    compared = len(set(texts)) > 1 and lower is not None
    best = (min if lower else max)(present) if present and compared else None
    best_texts = {form.format(best)} if best is not None else set()
    return Line(label=label, cells=tuple(TableCell(text=text, best=text in best_texts) for text in texts))


def _ratio_line(group: Group) -> Line:
    theirs = mean_jct_s(group, BASELINE)
    ratios = [run.summary.jct_mean_s / theirs if theirs and run.summary.jct_mean_s else None for run in group.runs]
    present = [ratio for ratio in ratios if ratio is not None]
    best = min(present) if len(present) > 1 and standing(min(present)) == BETTER else None
    return Line(
        label=f"mean JCT vs {BASELINE}",
        cells=tuple(
            TableCell(text=UNKNOWN if ratio is None else f"{ratio:.2f}x", best=best is not None and ratio == best)
            for ratio in ratios
        ),
    )


@dataclass(frozen=True, slots=True, order=True)
class LoadLevel:
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
        self._rows: dict[tuple[str, LoadLevel], dict[str, Row]] = defaultdict(dict)
        for row in rows:
            self._rows[row["preset"], load_of(row)][row["seed"]] = row
        self.presets = _ordered({preset for preset, _ in self._rows})
        self.systems = [preset for preset in self.presets if preset not in FORESEEING]  # that a node can run
        self.loads = sorted({load for _, load in self._rows})
        self._values: dict[tuple[str, LoadLevel, str], dict[str, float]] = {}

    @property
    def closed(self) -> bool:
        """Whether a program arrives when another one ends."""
        return self.loads[0].closed

    @property
    def title(self) -> str:
        telemetry = f", telemetry {self.telemetry}" if self.telemetry else ""
        return f"{self.workload} on {self.hardware}{telemetry}" + (", closed arrivals" if self.closed else "")

    def rows(self, preset: str, load: LoadLevel) -> list[Row]:
        """One of each seed."""
        return list(self._rows.get((preset, load), {}).values())

    def values(self, preset: str, load: LoadLevel, figure: str) -> dict[str, float]:
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

    def interval(self, preset: str, load: LoadLevel, figure: str) -> Interval | None:
        """Its mean over seeds, within what the figure can be; None where there is none."""
        values = self.values(preset, load, figure)
        most = 1.0 if figure.endswith("_ratio") and max(values.values(), default=0.0) <= 1 else inf
        return mean_interval(list(values.values())).within(0.0, most) if values else None

    def ratio(self, above: str, below: str, load: LoadLevel, figure: str) -> Interval | None:
        """The figure of ``above`` over that of ``below``, seed by seed; None without a seed that both have."""
        ours, theirs = self.values(above, load, figure), self.values(below, load, figure)
        return ratio_interval([(value, theirs[seed]) for seed, value in ours.items() if seed in theirs])

    def best(self, load: LoadLevel, figure: str, among: Iterable[str] | None = None) -> str:
        """The preset whose mean is best, of those that a node can run; empty where fewer than two have one, or the
        figure has no better end.
        """
        means = {
            preset: statistics.fmean(values.values())
            for preset in (self.systems if among is None else among)
            if (values := self.values(preset, load, figure))
        }
        return best_of(means, figure) if among is not None or len(means) > 1 else ""


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
            telemetry = row["telemetry"] if several else ""
            groups[row["workload"], row["hardware"], telemetry, load_of(row).closed].append(row)
        self.sections = [
            Section(workload, hardware, of, telemetry) for (workload, hardware, telemetry, _), of in groups.items()
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


def load_of(row: Row) -> LoadLevel:
    """The load of a row."""
    arrival = parse_arrival(row["arrival"])
    if isinstance(arrival, Closed):
        return LoadLevel(True, arrival.n, row["arrival"])
    return LoadLevel(False, arrival.rate, row["arrival"])


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
