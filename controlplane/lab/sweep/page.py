"""The HTML report of a sweep: one file that needs nothing else."""

import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.core.errors import ConfigError
from controlplane.lab.report.compare import SUBJECT, UNKNOWN, Cell, lower_is_better
from controlplane.lab.report.style import colour_of
from controlplane.lab.report.template import template
from controlplane.lab.sweep.grid import Grid, Load, Section
from controlplane.lab.sweep.plots import lines_svg, uses_svg
from controlplane.lab.sweep.results import Row
from controlplane.lab.sweep.wording import (
    JCT,
    Match,
    against_best,
    caveats,
    headlines,
    losses,
    plus_minus,
    winners,
)

_RATIO = "ratio"
_MATCHED = (JCT, "jct_p95_s", "ttft_p95_s", "cache_hit_ratio", "steps_per_min", "goodput_3x_per_s")
_SHOWN = {
    JCT: "mean JCT (s)",
    _RATIO: "over {baseline}'s",
    "jct_p50_s": "p50",
    "jct_p95_s": "p95",
    "jct_p99_s": "p99",
    "ttft_mean_s": "mean TTFT (s)",
    "ttft_p50_s": "p50",
    "ttft_p95_s": "p95",
    "ttft_p99_s": "p99",
    "hold_mean_s": "hold (s)",
    "steps_per_min": "steps/min",
    "output_tokens_per_s": "output tok/s",
    "cache_hit_ratio": "hit rate",
    "goodput_1x_per_s": "goodput 1x (/s)",
    "goodput_2x_per_s": "2x",
    "goodput_3x_per_s": "3x",
    "pool_recompute_ratio": "pool x time computing again",
    "pool_caching_ratio": "caching",
    "recomputed_tokens": "tokens computed again",
    "retractions": "retractions",
    "makespan_s": "makespan (s)",
    "programs_failed": "failed",
    "turns_per_cpu_min": "simulated turns/CPU-min",
}
_SHORT = {
    JCT: "mean JCT",
    "jct_p95_s": "p95 JCT",
    "ttft_p95_s": "p95 TTFT",
    "cache_hit_ratio": "hit rate",
    "steps_per_min": "steps/min",
    "goodput_3x_per_s": "goodput 3x",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A preset's figures at one load."""

    preset: str
    colour: str
    cells: Sequence[Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGroup:
    """All presets at one load."""

    load: str
    rows: Sequence[TableRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One section as the template shows it."""

    title: str
    lines_svg: str
    ablations_svg: str
    uses_svg: str
    labels: Sequence[str]
    groups: Sequence[TableGroup]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchRow:
    """The subject at one load, against the best of the others in each figure; None where it met nobody."""

    load: str
    cells: Sequence[Match | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchGroup:
    """One section's loads."""

    title: str
    rows: Sequence[MatchRow]


def write_page(rows: Sequence[Row], path: Path, *, baseline: str, command: Sequence[str] = ()) -> None:
    """Write the report of a sweep's rows. Raises ``ConfigError``."""
    try:
        path.write_text(render(rows, baseline=baseline, command=command), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot write the report: {error.strerror}") from error


def render(rows: Sequence[Row], *, baseline: str, command: Sequence[str] = ()) -> str:
    """The report as one HTML text, without a reference to any other file.

    Raises ``ConfigError`` without a run that ended well, or where the baseline was not run.
    """
    grid = Grid(rows)
    if not grid.sections:
        reasons = f": {grid.wrong[0]['error']}" if grid.wrong else ""
        raise ConfigError(f"a report needs a successful run{reasons}")
    if baseline not in grid.presets:
        raise ConfigError(f"--baseline: expected one of {', '.join(grid.presets)}, got {baseline!r}")
    return template("sweep.html.j2").render(
        title=f"Penstock: what {len(grid.rows):,} simulated runs tell",
        subject=SUBJECT,
        headlines=headlines(grid, baseline),
        losses=losses(grid),
        winners=winners(grid),
        caveats=caveats(grid),
        match_figures=[(_SHORT[figure], "↓" if lower_is_better(figure) else "↑") for figure in _MATCHED],
        matches=_matches(grid),
        sections=[_shown(section, baseline) for section in grid.sections],
        command=shlex.join(command),
        facts=_facts(grid),
    )


def families(presets: Sequence[str]) -> tuple[list[str], list[str]]:
    """The systems; and the ablations, ``NAME-...``, each behind the system of that name that it belongs to."""
    ablations = {each: [name for name in presets if name.startswith(f"{each}-")] for each in presets}
    belonging = {name for names in ablations.values() for name in names}
    systems = [name for name in presets if name not in belonging]
    return systems, [name for each in systems if ablations[each] for name in (each, *ablations[each])]


def _matches(grid: Grid) -> list[MatchGroup]:
    found = {
        (match.section.title, match.load, figure): match
        for figure in _MATCHED
        for match in against_best(grid, SUBJECT, figure)
    }
    groups = []
    for section in grid.sections:
        loads = [load for load in section.loads if (section.title, load, JCT) in found]
        rows = [
            MatchRow(load=load.title, cells=[found.get((section.title, load, figure)) for figure in _MATCHED])
            for load in loads
        ]
        if rows:
            groups.append(MatchGroup(title=section.title, rows=rows))
    return groups


def _shown(section: Section, baseline: str) -> Shown:
    systems, ablations = families(section.presets)
    return Shown(
        title=section.title,
        lines_svg=lines_svg(section, systems, baseline),
        ablations_svg=lines_svg(section, ablations, baseline) if ablations else "",
        uses_svg=uses_svg(section),
        labels=[label.format(baseline=baseline) for label in _SHOWN.values()],
        groups=[_group(section, load, baseline) for load in section.loads],
    )


def _group(section: Section, load: Load, baseline: str) -> TableGroup:
    bests = {
        figure: plus_minus(section.interval(section.best(load, figure), load, figure), figure)
        for figure in _SHOWN
        if figure != _RATIO and section.best(load, figure)
    }
    rows = []
    for preset in section.presets:
        cells = []
        for figure in _SHOWN:
            if figure == _RATIO:
                ratio = section.ratio(preset, baseline, load, JCT) if preset != baseline else None
                cells.append(Cell(text=UNKNOWN if ratio is None else str(ratio)))
            else:
                text = plus_minus(section.interval(preset, load, figure), figure)
                cells.append(Cell(text=text, best=bests.get(figure) == text))
        rows.append(TableRow(preset=preset, colour=colour_of(preset), cells=cells))
    return TableGroup(load=load.title, rows=rows)


def _facts(grid: Grid) -> dict[str, str]:
    cpu_s = sum(float(row["cpu_s"]) for row in grid.rows)
    turns = sum(float(row["turns_ended"]) for row in grid.rows)
    programs = statistics.median(float(row["programs"]) for row in grid.rows)
    codes = ", ".join(f"{revision or 'unknown'} (code {code})" for code, revision in grid.codes)
    return {
        "revision": codes,
        "presets": ", ".join(grid.presets),
        "seeds": ", ".join(grid.seeds),
        "runs": f"{len(grid.rows):,}, of {programs:g} programs in the median",
        "simulated": f"{turns:,.0f} turns in {cpu_s / 60:,.1f} CPU-minutes: {60 * turns / max(cpu_s, 1e-9):,.0f} a "
        "CPU-minute",
        "engine": "modelled, not measured: see docs/explanation/the-engine-model.md",
    }
