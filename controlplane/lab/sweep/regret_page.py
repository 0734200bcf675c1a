"""The regrets of a sweep as Markdown or as one HTML page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.core.errors import ConfigError
from controlplane.lab.report.compare import SUBJECT, UNKNOWN
from controlplane.lab.report.template import template
from controlplane.lab.sweep.grid import Grid
from controlplane.lab.sweep.regret import (
    CLAIRVOYANT,
    HEAVY_LOSS,
    LIGHT_LOSS,
    Case,
    Standing,
    cases,
    losses,
    standings,
)
from controlplane.lab.sweep.wording import JCT, caveats, plus_minus
from controlplane.lab.workload.interval import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A part of the page: what it says, then a table or a list, either of which may be empty."""

    title: str
    says: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    items: Sequence[str] = ()


def write_regret(grid: Grid, path: Path, *, baseline: str) -> None:
    """Write the page as HTML. Raises ``ConfigError``."""
    text = template("regret.html.j2").render(title=_title(grid), sheets=sheets(grid, baseline))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot write the report: {error.strerror}") from error


def regret_markdown(grid: Grid, baseline: str) -> str:
    """The page as Markdown."""
    lines = [f"# {_title(grid)}", ""]
    for sheet in sheets(grid, baseline):
        lines += [f"## {sheet.title}", "", sheet.says, ""]
        if sheet.rows:
            lines += [_line(sheet.header), _line(["---"] + ["---:"] * (len(sheet.header) - 1))]
            lines += [*map(_line, sheet.rows), ""]
        if sheet.items:
            lines += [*(f"- {item}" for item in sheet.items), ""]
    return "\n".join(lines).rstrip() + "\n"


def sheets(grid: Grid, baseline: str) -> list[Sheet]:
    """The whole page, in its order. Raises ``ConfigError`` without a run that ended well."""
    found = cases(grid)
    if not found:
        raise ConfigError("a report needs a successful run")
    return [_summary(grid, found, baseline), _lost(found, baseline), *_by_section(found, baseline), _notes(grid)]


def _title(grid: Grid) -> str:
    return f"Penstock: regrets of {len(grid.rows):,} simulated runs"


def _summary(grid: Grid, found: Sequence[Case], baseline: str) -> Sheet:
    return Sheet(
        title="All cases",
        says=(
            f"{len(found)} cases: a workload on a hardware with one telemetry at one load. Median and worst over "
            f"them of each preset's mean JCT over that of {baseline}, of the best preset, of the {CLAIRVOYANT} "
            "(its regret), and over the bound that no order can beat."
        ),
        header=(
            "preset",
            "cases",
            f"over {baseline}",
            "over the best",
            "regret",
            "over the bound",
            "worst regret at",
        ),
        rows=[_standing(standing) for standing in standings(found, grid.presets, baseline)],
    )


def _standing(standing: Standing) -> list[str]:
    spreads = (standing.over_baseline, standing.over_best, standing.regret, standing.over_bound)
    told = [UNKNOWN if spread is None else f"{spread[0]:.2f}, {spread[1]:.2f}" for spread in spreads]
    return [standing.preset, str(standing.cases), *told, standing.worst or UNKNOWN]


def _lost(found: Sequence[Case], baseline: str) -> Sheet:
    lost = losses(found, SUBJECT, baseline)
    return Sheet(
        title=f"Where {SUBJECT} loses",
        says=(
            f"Cases in which its mean JCT is more than {LIGHT_LOSS} times {baseline}'s below saturation, or more "
            f"than {HEAVY_LOSS} times that of the best preset from there on: {len(lost)} of {len(found)}, the "
            "worst first."
        ),
        items=[loss.text for loss in lost],
    )


def _by_section(found: Sequence[Case], baseline: str) -> Iterator[Sheet]:
    for section in dict.fromkeys(case.section for case in found):
        rows = []
        for case in (case for case in found if case.section is section):
            for preset in section.presets:
                ratios = (case.over(preset, baseline), case.over(preset, case.best), case.over(preset, CLAIRVOYANT))
                rows.append(
                    [
                        case.load.title + (f" ({case.load_ratio:.2g})" if case.load_ratio else ""),
                        preset + (" (best)" if preset == case.best else ""),
                        plus_minus(section.interval(preset, case.load, JCT), JCT),
                        *map(_ratio, ratios),
                        _ratio(case.over_bound(preset)),
                    ]
                )
        yield Sheet(
            title=section.title,
            says="Behind each load in brackets: times the rate that no order could sustain more of.",
            header=(
                "load",
                "preset",
                "mean JCT (s)",
                f"over {baseline}",
                "over the best",
                "regret",
                "over the bound",
            ),
            rows=rows,
        )


def _notes(grid: Grid) -> Sheet:
    return Sheet(title="Before you believe a figure", says="", items=caveats(grid))


def _ratios(baseline: str) -> tuple[str, ...]:
    return f"over {baseline}", "over the best", "regret", "over the bound"


def _ratio(ratio: Interval | None) -> str:
    return UNKNOWN if ratio is None else str(ratio)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
