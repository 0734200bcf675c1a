"""The HTML report: one file that needs nothing else, to read, to print and to send."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.core.errors import ConfigError
from controlplane.lab.report.compare import (
    BASELINE,
    SUBJECT,
    Group,
    Row,
    caveats,
    column_names,
    group_runs,
    jct_ratio,
    mean_jct_s,
    name_of,
    rows,
    standing,
    verdict,
)
from controlplane.lab.report.plots import jct_cdf_svg, rate_svg, ttft_cdf_svg
from controlplane.lab.report.style import colour_of
from controlplane.lab.report.template import template
from controlplane.lab.report.timeline import caption, shared_scales, timeline_svg
from controlplane.lab.workload.run import RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What the report says besides what the runs say themselves."""

    title: str = "Penstock: how the runs compare"
    subject: str = SUBJECT
    baseline: str = BASELINE
    command: Sequence[str] = ()  # exactly what was run, to run it again
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One run's plots as the template shows them."""

    name: str
    colour: str
    caption: str
    svg: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One load's mean completion times, large."""

    title: str
    baseline_s: float
    subject_s: float
    ratio: float
    standing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One load as the template shows it."""

    title: str
    columns: Sequence[tuple[str, str]]  # name and colour
    rows: Sequence[Row]
    jct_svg: str
    ttft_svg: str
    timelines: Sequence[Timeline]


def write_report(runs: Sequence[RunResult], path: str | Path, options: ReportOptions | None = None) -> Path:
    """Write the report of ``runs`` to ``path``.

    Raises ``ConfigError`` when there is no run or the file cannot be written.
    """
    path = Path(path)
    try:
        path.write_text(render(runs, options or ReportOptions()), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot write the report: {error.strerror}") from error
    return path


def render(runs: Sequence[RunResult], options: ReportOptions) -> str:
    """The report as one HTML text, without a reference to any other file."""
    if not runs:
        raise ConfigError("a report needs at least one run")
    groups = group_runs(runs)
    open_groups = [group for group in groups if group.rate]
    return template("page.html.j2").render(
        title=options.title,
        subject=options.subject,
        baseline=options.baseline,
        verdict=verdict(groups, options.subject, options.baseline),
        caveats=caveats(groups),
        headlines=_headlines(groups, options),
        rate_svg=rate_svg(open_groups) if len(open_groups) > 1 else "",
        sections=[_section(group, options.baseline) for group in groups],
        command=shlex.join(options.command),
        facts=_common_facts(runs, options.facts),
        runs=[(name_of(run), run, _own_facts(run, runs)) for group in groups for run in group.runs],
    )


def _headlines(groups: Sequence[Group], options: ReportOptions) -> list[Headline]:
    found = []
    for group in groups:
        baseline_s, subject_s = (mean_jct_s(group, name) for name in (options.baseline, options.subject))
        ratio = jct_ratio(group, options.subject, options.baseline)
        if baseline_s is not None and subject_s is not None and ratio is not None:
            found.append(
                Headline(
                    title=group.title,
                    baseline_s=baseline_s,
                    subject_s=subject_s,
                    ratio=ratio,
                    standing=standing(ratio),
                )
            )
    return found


def _section(group: Group, baseline: str) -> Section:
    scales = shared_scales(group.runs)
    names = column_names(group)
    return Section(
        title=group.title,
        columns=[(name, colour_of(name_of(run))) for name, run in zip(names, group.runs, strict=True)],
        rows=rows(group, baseline),
        jct_svg=jct_cdf_svg(group),
        ttft_svg=ttft_cdf_svg(group),
        timelines=[
            Timeline(
                name=name,
                colour=colour_of(name_of(run)),
                caption=caption(run),
                svg=timeline_svg(run, scales),
            )
            for name, run in zip(names, group.runs, strict=True)
            if run.series.t_ns
        ],
    )


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
