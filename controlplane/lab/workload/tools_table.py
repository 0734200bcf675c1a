"""``penstock tools``: what is drawn for each tool, as a table."""

import json as stdlib_json

from rich.table import Table

from controlplane.lab.console import Console
from controlplane.lab.workload.durations import Empirical, LogNormal
from controlplane.lab.workload.tool_fits import Fit, ToolFits

POOL = "(all tools)"
_QUANTILES = (0.5, 0.9, 0.99)


def show_fits(fits: ToolFits, *, json: bool) -> None:
    """Print a row for each tool, the most called first, and one for all of them."""
    rows = [_row(POOL, fits.pool, fits.pool), *(_row(name, fit, fits.of(name)) for name, fit in fits.tools.items())]
    if json:
        print(stdlib_json.dumps(rows, indent=2))  # noqa: T201
        return
    table = Table(title=f"Tool times of {fits.trace}, in ms", title_justify="left", header_style="bold")
    table.add_column("tool", overflow="fold", min_width=12)
    for name in ("calls", "p50", "p90", "p99", "mean"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fit", no_wrap=True)
    for tool, calls, *figures, fit in (row.values() for row in rows):
        table.add_row(str(tool), str(calls), *(_shown(float(figure)) for figure in figures), str(fit))
    Console().print(table, highlight=False)


def _shown(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def _row(name: str, fit: Fit, drawn: Empirical | LogNormal) -> dict[str, str | int | float]:
    return {
        "tool": name,
        "calls": fit.calls,
        **{f"p{round(100 * p)}_ms": round(drawn.quantile_ms(p), 3) for p in _QUANTILES},
        "mean_ms": round(drawn.mean_ms, 3),
        "fit": str(fit.__struct_config__.tag),
    }
