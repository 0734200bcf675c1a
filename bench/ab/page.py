"""What was measured in Markdown: the rows of docs/reference/benchmarks.md, and what they are of."""

from collections.abc import Sequence

from ab.comparison import Comparison
from ab.report import comparisons
from ab.results import Row
from ab.systems import STOCK

_HEADS = (
    "programs/s",
    "",
    "mean JCT",
    "p95",
    "TTFT first p50 / p99",
    "later p50 / p99",
    "TPOT (ms)",
    "hit rate",
    "turns/min",
    "engine CPU a turn",
    "makespan",
    "mean JCT over stock's",
)


def section(rows: Sequence[Row], scenario: str) -> str:
    """The table, and before it load, machine, versions and revisions."""
    mine = [row for row in rows if row.cell.scenario == scenario]
    last = mine[-1]
    versions = ", ".join(f"{name} {version}" for name, version in last.versions.items())
    revisions = ", ".join(sorted({row.revision or "unknown" for row in mine}))
    machines = ", ".join(sorted({row.gpu or row.cpu_model or "not noted" for row in mine}))
    others = max(row.others_ratio for row in mine)
    failed = sum(row.figures.programs_failed for row in mine)
    seeds = ", ".join(str(seed) for seed in sorted({row.cell.seed for row in mine}))
    told = (
        f"{last.load}; {versions}; {machines}; revision {revisions}; seeds {seeds}. Other work took at most "
        f"{others:.0%} of the CPUs; {failed} programs failed. Times in seconds, means over seeds; in brackets 95% "
        "intervals."
    )
    return f"{told}\n\n{table(rows, scenario)}\n"


def table(rows: Sequence[Row], scenario: str) -> str:
    """A row for each rate and system; times in seconds, means over the seeds that all systems of the rate have."""
    lines = [_line(_HEADS), _line(["---"] * len(_HEADS))]
    for comparison in comparisons(rows, scenario):
        lines += [
            _line([f"{comparison.rate:g}" if number == 0 else "", name, *_figures(comparison, name)])
            for number, name in enumerate(comparison.systems)
        ]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _figures(comparison: Comparison, name: str) -> list[str]:
    def mean(figure: str) -> float:
        return comparison.mean(name, figure)

    def pair(figure: str) -> str:
        return f"{mean(f'{figure}_p50_s'):.2f} / {mean(f'{figure}_p99_s'):.1f}"

    has_stock = STOCK in comparison.systems and name != STOCK
    return [
        f"{mean('jct_mean_s'):.1f}",
        f"{mean('jct_p95_s'):.1f}",
        pair("first_ttft"),
        pair("later_ttft"),
        f"{1000 * mean('tpot_mean_s'):.1f}",
        f"{mean('hit_rate'):.2f}",
        f"{mean('turns_per_min'):.0f}",
        f"{mean('engine_cpu_turn_s'):.3f}",
        f"{mean('makespan_s'):.0f}",
        str(comparison.ratio(name, STOCK)) if has_stock else "",
    ]
