"""A sweep's results as tables: presets down, loads across, mean and 95% interval over seeds."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from controlplane.sweep.results import Row

BASELINE = "fcfs"
# 97.5% quantiles of Student's t by degrees of freedom; beyond the last the normal distribution's does.
_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_NORMAL = 1.96
SHOWN = {
    "jct_mean_s": "mean JCT (s)",
    "jct_p95_s": "p95 JCT (s)",
    "ttft_p99_s": "p99 TTFT (s)",
    "cache_hit_ratio": "hit rate",
    "pool_recompute_ratio": "pool x time computing again",
    "tool_slowdown_ratio": "tool time / without contention",
}
_HIGHER_IS_BETTER = frozenset({"cache_hit_ratio"})


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and half the width of its 95% interval; 0 for a single value."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.half:.2g}" if self.half else f"{self.mean:.4g}"


def interval(values: Sequence[float]) -> Interval:
    """Student's t over ``values``, which are taken as independent and of a like spread. Not empty."""
    mean, count = statistics.fmean(values), len(values)
    if count < 2:
        return Interval(mean, 0.0)
    t = _T[count - 2] if count - 2 < len(_T) else _NORMAL
    return Interval(mean, t * statistics.stdev(values) / count**0.5)


def groups(rows: Iterable[Row]) -> dict[tuple[str, str], dict[str, dict[float, list[Row]]]]:
    """By (workload, hardware), then preset, then open arrival rate; rows without an error."""
    found: dict[tuple[str, str], dict[str, dict[float, list[Row]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in rows:
        if not row["error"]:
            found[row["workload"], row["hardware"]][row["preset"]][float(row["rate"])].append(row)
    return found


def tables(rows: Iterable[Row], figure: str = "jct_mean_s") -> Iterator[tuple[str, Table]]:
    """A title and a table for each workload on each hardware; the best preset of a load is bold and marked."""
    for (workload, hardware), presets in groups(rows).items():
        rates = sorted({rate for by_rate in presets.values() for rate in by_rate})
        table = Table(header_style="bold")
        table.add_column("programs/s")
        for rate in rates:
            table.add_column(f"{rate:g}" if rate else "closed", justify="right", no_wrap=True)
        best = {rate: _best(presets, rate, figure) for rate in rates}
        for name, by_rate in presets.items():
            cells = [_cell(by_rate.get(rate, []), figure, name == best[rate]) for rate in rates]
            table.add_row(name, *cells)
        yield f"{SHOWN[figure]}: {workload} on {hardware}", table


def _cell(rows: Sequence[Row], figure: str, best: bool) -> str:
    if not rows:
        return "–"
    text = str(interval([float(row[figure]) for row in rows]))
    return f"[bold green]{text} *[/]" if best else f"{text}  "


def _best(presets: Mapping[str, Mapping[float, Sequence[Row]]], rate: float, figure: str) -> str:
    means = {
        name: statistics.fmean(float(row[figure]) for row in by_rate[rate])
        for name, by_rate in presets.items()
        if by_rate.get(rate)
    }
    if len(means) < 2:
        return ""
    return (max if figure in _HIGHER_IS_BETTER else min)(means, key=lambda name: means[name])


def losses(rows: Iterable[Row], subject: str = "mars", figure: str = "jct_mean_s") -> list[str]:
    """Where ``subject`` does worse than another preset, seed by seed: one line each, the worst first."""
    found: list[tuple[float, str]] = []
    for (workload, hardware), presets in groups(rows).items():
        ours = presets.get(subject, {})
        for name, by_rate in presets.items():
            for rate, theirs in by_rate.items():
                ratios = _paired(ours.get(rate, []), theirs, figure)
                if name == subject or not ratios or (mean := interval(ratios)).mean <= 1.0:
                    continue
                sure = "" if mean.mean - mean.half > 1 else ", within noise"
                text = f"{workload} on {hardware}, {rate:g}/s: {mean} times {name}'s{sure}"
                found.append((mean.mean, text))
    return [text for _, text in sorted(found, reverse=True)]


def _paired(ours: Sequence[Row], theirs: Sequence[Row], figure: str) -> list[float]:
    """Ratios of our figure to theirs for the seeds that both have."""
    by_seed = {row["seed"]: float(row[figure]) for row in theirs}
    return [float(row[figure]) / by_seed[row["seed"]] for row in ours if by_seed.get(row["seed"], 0.0) > 0]
