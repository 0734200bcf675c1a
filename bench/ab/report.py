"""The table of all that was measured, and which targets it meets."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ab import bootstrap
from ab.comparison import BEST_RATIO, FIGURES, Comparison
from ab.machine import QUIET_RATIO
from ab.results import RUN, Row, of_a_slow_machine, of_another_time
from ab.systems import STOCK
from ab.tuning import mean_jcts
from controlplane.lab.workload.interval import Interval
from controlplane.lab.workload.telemetry import Telemetry

_Column = tuple[str, str, str]  # head, figure, form
_COLUMNS = (
    ("JCT mean", "jct_mean_s", "{:8.1f}"),
    ("p50", "jct_p50_s", "{:7.1f}"),
    ("p95", "jct_p95_s", "{:7.1f}"),
    ("TTFT p50", "ttft_p50_s", "{:8.2f}"),
    ("p99", "ttft_p99_s", "{:7.2f}"),
    ("hit rate", "hit_rate", "{:8.2f}"),
    ("turns/min", "turns_per_min", "{:9.1f}"),
    ("out tok/s", "output_tokens_per_s", "{:9.1f}"),
    ("makespan", "makespan_s", "{:8.0f}"),
)
_TURNS = (
    ("first TTFT p50", "first_ttft_p50_s", "{:14.2f}"),
    ("p99", "first_ttft_p99_s", "{:7.2f}"),
    ("later p50", "later_ttft_p50_s", "{:9.2f}"),
    ("p99", "later_ttft_p99_s", "{:7.2f}"),
    ("TPOT", "tpot_mean_s", "{:7.4f}"),
    ("engine CPU a turn", "engine_cpu_turn_s", "{:17.3f}"),
)
"""What turns felt, and what they cost; 0 where older rows say nothing."""
_WIDTH = 16


def latest_scenario(rows: Sequence[Row], telemetry: Telemetry | None = None) -> str | None:
    """The scenario of the last row; of the last one of that telemetry, where one is named."""
    mine = [row for row in rows if telemetry in (None, row.telemetry)]
    return mine[-1].cell.scenario if mine else None


def only(rows: Sequence[Row], systems: frozenset[str]) -> list[Row]:
    """The rows of these systems, and all that tuning needs; every row where none is named."""
    return [row for row in rows if not systems or row.cell.system in systems or row.cell.purpose != RUN]


def comparisons(rows: Sequence[Row], scenario: str) -> list[Comparison]:
    """One for each rate that was run, ascending; those without a seed that all systems share are left out."""
    rates = sorted({r.cell.rate for r in rows if r.cell.scenario == scenario and r.cell.purpose == RUN})
    return [found for rate in rates if (found := Comparison(rows, scenario, rate)).seeds]


def show(rows: Sequence[Row], scenario: str, saturated_from: float) -> str:
    """All of it as text."""
    mine = [row for row in rows if row.cell.scenario == scenario]
    lines = [_machine(mine)]
    if len(mine) < len(rows):
        lines.append(f"{len(rows) - len(mine)} rows of other loads, telemetry or engines are left out")
    lines += _tuning(rows, scenario)
    compared = comparisons(rows, scenario)
    if not compared:
        lines.append("no rate has yet been run with one seed for every system")
    for comparison in compared:
        lines += ["", *_rate(comparison, saturated_from)]
    if compared:
        lines += ["", *_over_rates(compared, saturated_from), "", *_method()]
    return "\n".join(lines)


def _machine(rows: Sequence[Row]) -> str:
    last = rows[-1]
    versions = ", ".join(f"{name} {version}" for name, version in last.versions.items())
    revisions = ", ".join(
        f"{name or 'unknown'} ({count})" for name, count in Counter(r.revision for r in rows).items()
    )
    codes = {(r.cell.system, r.code) for r in rows}
    mixed = sorted({name for name, _ in codes if sum(1 for other, _ in codes if other == name) > 1})
    others = max(row.others_ratio for row in rows)
    text = f"{_load(last)}\n{last.cpus} CPUs, of which other work took at most {others:.0%}; {versions}\n"
    text += f"revisions: {revisions}"
    disturbed = sum(row.others_ratio > QUIET_RATIO for row in rows)
    models = sorted({row.cpu_model for row in rows})
    if len(models) > 1:
        text += f"\nCAREFUL: runs on several machines: {'; '.join(name or 'not noted' for name in models)}"
    if slow := sorted(of_a_slow_machine(rows), key=lambda cell: (cell.rate, cell.seed, cell.system)):
        named = ", ".join(f"{cell.system} at {cell.rate:g}/s, seed {cell.seed}" for cell in slow)
        text += f"\nCAREFUL: the machine was slower than for the others (--redo-slow): {named}"
    if apart := sorted(of_another_time(rows), key=lambda cell: (cell.rate, cell.seed, cell.system)):
        named = ", ".join(f"{cell.system} at {cell.rate:g}/s, seed {cell.seed}" for cell in apart)
        text += f"\nCAREFUL: not at the same time as the others, which ran side by side: {named}"
    text += f"\nCAREFUL: other work took more than {QUIET_RATIO:.0%} during {disturbed} runs" if disturbed else ""
    return text + (f"\nCAREFUL: runs of several versions of the code: {', '.join(mixed)}" if mixed else "")


def _load(row: Row) -> str:
    """The load in words. Rows from before there was a choice do not name what the programs tell."""
    told = f"telemetry {row.telemetry}"
    return row.load if told in row.load else f"{row.load}; {told}"


def _tuning(rows: Sequence[Row], scenario: str) -> list[str]:
    means = mean_jcts(rows, scenario)
    if not means:
        return ["the static window was not tuned: the best of those that were run is compared with"]
    lines = ["static windows on the tuning seeds, mean JCT (s):"]
    for rate, windows in sorted(means.items()):
        best = min(windows, key=lambda window: windows[window])
        cells = "  ".join(f"{w}: {m:.1f}{'*' if w == best else ''}" for w, m in windows.items())
        lines.append(f"  {rate:g}/s  {cells}")
    return lines


def _rate(comparison: Comparison, saturated_from: float) -> list[str]:
    seeds = ", ".join(map(str, comparison.seeds))
    lines = [f"poisson:{comparison.rate:g}, seeds {seeds} (times in s, means over seeds)"]
    if comparison.seeds_left_out:
        lines.append(f"  not every system has seed {', '.join(map(str, comparison.seeds_left_out))}: left out")
    lines.append(
        f"  {'system':{_WIDTH}}{_heads(_COLUMNS)}{'failed':>8}{'retr.':>7}  {_against(comparison)}".rstrip()
    )
    for name in comparison.systems:
        cells = _cells(comparison, name, _COLUMNS)
        lost, retracted = comparison.total(name, "programs_failed"), comparison.total(name, "retractions")
        shown = f"{name}*" if name == comparison.static else name
        lines.append(f"  {shown:{_WIDTH}}{cells}{lost:8}{retracted:7}  {_times_lower(comparison, name)}")
    lines.append(f"  {'system':{_WIDTH}}{_heads(_TURNS)}")
    lines += [f"  {name:{_WIDTH}}{_cells(comparison, name, _TURNS)}" for name in comparison.systems]
    failed = [name for name in comparison.systems if comparison.total(name, "programs_failed")]
    if failed:
        lines.append(f"    CAREFUL: programs failed under {', '.join(failed)}: no time has them")
    for name in comparison.candidates:
        lines += [
            f"    {name}: {target.what} = {target.ratio}, at most {target.most:g}: {target.verdict}"
            for target in comparison.targets(name, saturated_from)
        ]
    return lines


def _heads(columns: Sequence[_Column]) -> str:
    return "".join(f"{head:>{len(form.format(0)) + 1}}" for head, _, form in columns)


def _cells(comparison: Comparison, system: str, columns: Sequence[_Column]) -> str:
    return "".join(" " + form.format(comparison.mean(system, figure)) for _, figure, form in columns)


def _against(comparison: Comparison) -> str:
    return "  ".join(f"{'x lower than ' + name:24}" for name in comparison.references)


def _times_lower(comparison: Comparison, name: str) -> str:
    cells = [
        "" if name == reference else str(comparison.ratio(reference, name)) for reference in comparison.references
    ]
    return "  ".join(f"{cell:24}" for cell in cells).rstrip()


def _over_rates(compared: Sequence[Comparison], saturated_from: float) -> list[str]:
    """The best rate of each candidate."""
    lines = []
    for name in sorted({name for comparison in compared for name in comparison.candidates}):
        ratios = {
            c.rate: c.ratio(STOCK, name).value
            for c in compared
            if name in c.systems and STOCK in c.systems and c.rate >= saturated_from
        }
        if ratios:
            best = max(ratios, key=lambda rate: ratios[rate])
            verdict = "met" if ratios[best] >= BEST_RATIO else "MISSED"
            lines.append(
                f"{name}: at its best rate, {best:g}/s, mean JCT {ratios[best]:.2f} times lower than stock's "
                f"(at least {BEST_RATIO:g}): {verdict}"
            )
    return lines


def _method() -> list[str]:
    return [
        f"* the static window that is compared with. In brackets: 95% intervals of {bootstrap.RESAMPLES} resamples",
        "of seeds, and within a seed of its programs, the same for every system; of makespans the least and the",
        'largest ratio of a seed. "within noise": beyond the bound, which lies in the interval. Holds at the gate',
        "count in JCT and TTFT; first: of each program's first turn, the one that is held; later: of all others.",
    ]


def to_json(rows: Sequence[Row], scenario: str, saturated_from: float) -> str:
    """The same, for a program to read."""
    found: list[dict[str, Any]] = []
    for c in comparisons(rows, scenario):
        systems = {name: {figure: round(c.mean(name, figure), 4) for figure in FIGURES} for name in c.systems}
        targets = [
            {"system": n, "what": t.what, "ratio": _interval(t.ratio), "most": t.most, "verdict": t.verdict}
            for n in c.candidates
            for t in c.targets(n, saturated_from)
        ]
        lower = {
            n: {reference: _interval(c.ratio(reference, n)) for reference in c.references if reference != n}
            for n in c.systems
        }
        entry = {"rate": c.rate, "seeds": c.seeds, "static": c.static, "systems": systems}
        found.append({**entry, "times_lower_than": lower, "targets": targets})
    telemetry = next((str(row.telemetry) for row in rows if row.cell.scenario == scenario), "")
    return json.dumps({"scenario": scenario, "telemetry": telemetry, "rates": found})


def _interval(estimate: Interval) -> list[float]:
    return [round(number, 4) for number in (estimate.value, estimate.low, estimate.high)]
