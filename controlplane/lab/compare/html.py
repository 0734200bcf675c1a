"""A comparison as HTML: one file that needs nothing else, to read, to print and to send."""

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from controlplane.core.model.errors import ConfigError
from controlplane.lab.compare.beside import SIMULATED, same_runs
from controlplane.lab.compare.plots import jct_cdf_svg, lines_svg, rate_svg, ttft_cdf_svg
from controlplane.lab.compare.regret import regret_title, sheets
from controlplane.lab.compare.rows import (
    BASELINE,
    JCT,
    RATIO,
    SUBJECT,
    UNKNOWN,
    Grid,
    Group,
    LoadLevel,
    Row,
    Section,
    TableCell,
    column_names,
    group_runs,
    jct_ratio,
    lines,
    lower_is_better,
    mean_jct_s,
    name_of,
    standing,
)
from controlplane.lab.compare.style import colour_of
from controlplane.lab.compare.timeline import caption, shared_scales, timeline_svg
from controlplane.lab.compare.words import (
    against_best,
    grid_caveats,
    headlines,
    losses,
    plus_minus,
    run_caveats,
    verdict,
    winners,
)
from controlplane.lab.workload.run import RunResult

_MATCHED = (JCT, "jct_p95_s", "ttft_p95_s", "cache_hit_ratio", "steps_per_min", "goodput_3x_per_s")
_SHOWN = {
    JCT: "mean JCT (s)",
    RATIO: "over {baseline}'s",
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
class ReportOptions:
    """What the report says besides what the runs say themselves."""

    title: str = "Penstock: how the runs compare"
    command: Sequence[str] = ()  # exactly what was run, to run it again
    facts: Mapping[str, str] = field(default_factory=dict)
    outcome: Sequence[str] = ()  # in sentences, in place of the verdict
    notes: Sequence[str] = ()  # what a reader must know, before what the runs say of that
    predicted: Sequence[RunResult] = ()  # what the simulator said of the same programs, to stand beside


def write(html: str, path: Path) -> None:
    """Raises ``ConfigError`` where the file cannot be written."""
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot write the report: {error.strerror}") from error


def filled(name: str, **shown: Any) -> str:
    """The template of that file name. A variable that it uses and is not given is an error."""
    environment = Environment(
        loader=PackageLoader("controlplane.lab", "compare"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(shown)


# -- single runs ------------------------------------------------------------------------------------------


def write_report(runs: Sequence[RunResult], path: Path, options: ReportOptions) -> None:
    """Write the report of ``runs``. Raises ``ConfigError`` without a run, or where the file cannot be written."""
    write(runs_html(runs, options), path)


def runs_html(runs: Sequence[RunResult], options: ReportOptions) -> str:
    """The report as one HTML text, without a reference to any other file."""
    if not runs:
        raise ConfigError("a report needs at least one run")
    groups, predicted = group_runs(runs), group_runs(options.predicted)
    open_groups = [group for group in groups if group.rate]
    return filled(
        "page.html.j2",
        title=options.title,
        subject=SUBJECT,
        baseline=BASELINE,
        verdict=" ".join(options.outcome) or verdict(groups),
        caveats=[*options.notes, *run_caveats(groups)],
        headlines=_tiles(groups),
        rate_svg=rate_svg(open_groups, predicted) if len(open_groups) > 1 or predicted else "",
        sections=[_group_shown(group, same_runs(group, options.predicted)) for group in groups],
        command=shlex.join(options.command),
        facts=_common_facts(runs, options.facts),
        runs=[(name_of(run), run, _own_facts(run, runs)) for group in groups for run in group.runs],
    )


def _tiles(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Each load's mean completion times, large."""
    found = []
    for group in groups:
        baseline_s, subject_s = (mean_jct_s(group, name) for name in (BASELINE, SUBJECT))
        ratio = jct_ratio(group)
        if baseline_s is not None and subject_s is not None and ratio is not None:
            tile = {"title": group.title, "baseline_s": baseline_s, "subject_s": subject_s, "ratio": ratio}
            found.append({**tile, "standing": standing(ratio)})
    return found


def _group_shown(group: Group, predicted: Group | None) -> dict[str, Any]:
    """One load as the template shows it, with what was predicted in further columns."""
    scales = shared_scales(group.runs)
    named = list(zip(column_names(group), group.runs, strict=True))
    columns = [(name, colour_of(name_of(run))) for name, run in named]
    rows = lines(group)
    if predicted is not None:
        columns += [(f"{name}, {SIMULATED}", colour) for name, colour in columns]
        pairs = zip(rows, lines(predicted), strict=True)
        rows = [replace(live, cells=(*live.cells, *other.cells)) for live, other in pairs]
    return {
        "title": group.title,
        "columns": columns,
        "rows": [row for row in rows if row.says_something],
        "jct_svg": jct_cdf_svg(group),
        "ttft_svg": ttft_cdf_svg(group),
        "timelines": [
            {
                "name": name,
                "colour": colour_of(name_of(run)),
                "caption": caption(run),
                "svg": timeline_svg(run, scales),
            }
            for name, run in named
            if run.series.t_ns
        ],
    }


def _common_facts(runs: Sequence[RunResult], more: Mapping[str, str]) -> dict[str, str]:
    """What every run says alike."""
    first, *others = (run.facts for run in runs)
    common = {name: value for name, value in first.items() if all(o.get(name) == value for o in others)}
    scales = {str(run.scale) for run in runs}
    if len(scales) == 1:
        common.setdefault("scale", scales.pop())
    return {**common, **more}


def _own_facts(run: RunResult, runs: Sequence[RunResult]) -> dict[str, str]:
    """What this run says and not every other one does."""
    common = _common_facts(runs, {})
    return {name: value for name, value in run.facts.items() if common.get(name) != value}


# -- sweeps -----------------------------------------------------------------------------------------------


def sweep_html(rows: Sequence[Row], *, baseline: str, command: Sequence[str] = ()) -> str:
    """The report as one HTML text, without a reference to any other file.

    Raises ``ConfigError`` without a run that ended well, or where the baseline was not run.
    """
    grid = Grid(rows)
    if not grid.sections:
        reasons = f": {grid.wrong[0]['error']}" if grid.wrong else ""
        raise ConfigError(f"a report needs a successful run{reasons}")
    if baseline not in grid.presets:
        raise ConfigError(f"--baseline: expected one of {', '.join(grid.presets)}, got {baseline!r}")
    return filled(
        "sweep.html.j2",
        title=f"Penstock: what {len(grid.rows):,} simulated runs tell",
        subject=SUBJECT,
        headlines=headlines(grid, baseline),
        losses=losses(grid),
        winners=winners(grid),
        caveats=grid_caveats(grid),
        match_figures=[(_SHORT[figure], "↓" if lower_is_better(figure) else "↑") for figure in _MATCHED],
        matches=_matches(grid),
        sections=[_shown(section, baseline) for section in grid.sections],
        command=shlex.join(command),
        facts=_grid_facts(grid),
    )


def _matches(grid: Grid) -> list[dict[str, Any]]:
    """Of each section the subject at each load, against the best of the others, figure by figure."""
    found = {
        (match.section.title, match.load, figure): match
        for figure in _MATCHED
        for match in against_best(grid, figure)
    }
    groups = []
    for section in grid.sections:
        rows = [
            {"load": load.title, "cells": [found.get((section.title, load, figure)) for figure in _MATCHED]}
            for load in section.loads
            if (section.title, load, JCT) in found
        ]
        groups.append({"title": section.title, "rows": rows})
    return [group for group in groups if group["rows"]]


def _shown(section: Section, baseline: str) -> dict[str, Any]:
    return {
        "title": section.title,
        "lines_svg": lines_svg(section, section.presets, baseline),
        "labels": [label.format(baseline=baseline) for label in _SHOWN.values()],
        "groups": [_presets_at(section, load, baseline) for load in section.loads],
    }


def _presets_at(section: Section, load: LoadLevel, baseline: str) -> dict[str, Any]:
    bests = {
        figure: plus_minus(section.interval(section.best(load, figure), load, figure), figure)
        for figure in _SHOWN
        if figure != RATIO and section.best(load, figure)
    }
    rows = []
    for preset in section.presets:
        cells = []
        for figure in _SHOWN:
            if figure == RATIO:
                ratio = section.ratio(preset, baseline, load, JCT) if preset != baseline else None
                cells.append(TableCell(text=UNKNOWN if ratio is None else str(ratio)))
            else:
                text = plus_minus(section.interval(preset, load, figure), figure)
                cells.append(TableCell(text=text, best=bests.get(figure) == text))
        rows.append({"preset": preset, "colour": colour_of(preset), "cells": cells})
    return {"load": load.title, "rows": rows}


def _grid_facts(grid: Grid) -> dict[str, str]:
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


def write_regret(grid: Grid, path: Path, *, baseline: str) -> None:
    """Write the regrets of a sweep. Raises ``ConfigError``."""
    write(filled("regret.html.j2", title=regret_title(grid), sheets=sheets(grid, baseline)), path)
