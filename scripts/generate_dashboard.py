"""Generate the Grafana dashboard from the panels below: ``python scripts/generate_dashboard.py``."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).resolve().parent.parent / "controlplane/operate/deploy/grafana/penstock.json"
_SELECT = '{instance=~"$instance"}'
_WIDTH, _HEIGHT = 12, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot. ``queries``: (legend, expression), ``$S`` where the instance is chosen."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    description: str = ""


def _quantiles(histogram: str, *wanted: float) -> tuple[tuple[str, str], ...]:
    """A query for each: 0.5 is called the median, 0.95 p95."""
    rate = f"sum by (le) (rate({histogram}_bucket$S[$__rate_interval]))"
    return tuple(("median" if q == 0.5 else f"p{100 * q:g}", f"histogram_quantile({q:g}, {rate})") for q in wanted)


PANELS = (
    Panel(
        title="Window and programs",
        description="The window's limit (0: none), and the root programs that have a slot or wait for one.",
        queries=(
            ("limit", "penstock_window_limit$S"),
            ("before caps", "penstock_window_raw$S"),
            ("{{status}}", "penstock_programs$S"),
        ),
    ),
    Panel(
        title="Pressure",
        description="KV demand of the active programs over the pool, and use and stalls of the tool host's CPUs.",
        unit="percentunit",
        queries=(
            ("KV", "penstock_kv_use_ratio$S"),
            ("CPU use", "penstock_host_cpu_use_ratio$S"),
            ("CPU stalls", "penstock_host_cpu_stall_ratio$S"),
            ("{{side}} overloaded", "penstock_overloaded$S"),
        ),
    ),
    Panel(title="KV pool", unit="short", queries=(("{{state}}", "penstock_kv_blocks$S"),)),
    Panel(title="KV in host memory", queries=(("{{state}}", "penstock_kv_host_blocks$S"),)),
    Panel(
        title="Tokens found in the cache",
        unit="percentunit",
        queries=(
            (
                "hit rate",
                'sum(rate(penstock_tokens_total{instance=~"$instance",kind="cached"}[$__rate_interval]))'
                ' / sum(rate(penstock_tokens_total{instance=~"$instance",kind="prompt"}[$__rate_interval]))',
            ),
        ),
    ),
    Panel(
        title="Tokens a second",
        queries=(("{{kind}}", "sum by (kind) (rate(penstock_tokens_total$S[$__rate_interval]))"),),
    ),
    Panel(
        title="Wait for a slot",
        unit="s",
        queries=_quantiles("penstock_hold_seconds", 0.5, 0.95, 0.99),
    ),
    Panel(
        title="From the engine's queue to the first prefill",
        unit="s",
        queries=_quantiles("penstock_launch_delay_seconds", 0.5, 0.95),
    ),
    Panel(
        title="Tools",
        queries=(("{{state}}", "penstock_tools$S"), ("times their usual time", "penstock_tools_slowdown_ratio$S")),
    ),
    Panel(
        title="Tool calls' time",
        unit="s",
        queries=_quantiles("penstock_tool_duration_seconds", 0.5, 0.95),
    ),
    Panel(
        title="Decisions a second",
        queries=(("{{kind}}", "sum by (kind) (rate(penstock_commands_total$S[$__rate_interval]))"),),
    ),
    Panel(
        title="Events a second, and what was wrong with them",
        queries=(("{{kind}}", "sum by (kind) (rate(penstock_events_total$S[$__rate_interval]))"),),
    ),
    Panel(
        title="Engines",
        description="By standing, and who leads where several daemons could.",
        queries=(("{{standing}}", "penstock_engines$S"), ("leads {{node}}", "penstock_leading$S")),
    ),
    Panel(
        title="Each engine's pool",
        description="KV demand of the programs that ran there last over the engine's pool.",
        unit="percentunit",
        queries=(
            (
                "{{engine}}",
                'penstock_engine_kv_blocks{instance=~"$instance",state="demand"}'
                ' / ignoring(state) (penstock_engine_kv_blocks{instance=~"$instance",state="total"} > 0)',
            ),
        ),
    ),
    Panel(
        title="Programs on each engine",
        queries=(("{{engine}}, {{status}}", "penstock_engine_programs$S"),),
    ),
    Panel(title="Turns in each engine", queries=(("{{engine}}", "penstock_engine_turns$S"),)),
    Panel(
        title="Tokens found in each engine's cache",
        unit="percentunit",
        queries=(
            (
                "{{engine}}",
                'sum by (engine) (rate(penstock_engine_tokens_total{instance=~"$instance",kind="cached"}'
                "[$__rate_interval]))"
                ' / sum by (engine) (rate(penstock_engine_tokens_total{instance=~"$instance",kind="prompt"}'
                "[$__rate_interval]))",
            ),
        ),
    ),
    Panel(
        title="Programs that moved, a second",
        description="From one engine to another: each computes its context anew there, or has it sent.",
        queries=(("moves", "rate(penstock_moves_total$S[$__rate_interval])"),),
    ),
)


def dashboard() -> dict[str, Any]:
    """As Grafana imports it; the data source is asked for."""
    return {
        "title": "Penstock",
        "uid": "penstock",
        "tags": ["penstock"],
        "schemaVersion": 39,
        "version": 1,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_data_source(), _instance()]},
        "panels": [_panel(panel, number) for number, panel in enumerate(PANELS)],
    }


def _data_source() -> dict[str, Any]:
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _instance() -> dict[str, Any]:
    return {
        "name": "instance",
        "label": "Node",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": "label_values(penstock_window_limit, instance)",
        "includeAll": True,
        "multi": True,
        "refresh": 2,
    }


def _panel(panel: Panel, number: int) -> dict[str, Any]:
    row, column = divmod(number, 2)
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": source,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": source,
                "expr": expression.replace("$S", _SELECT),
                "legendFormat": legend,
            }
            for index, (legend, expression) in enumerate(panel.queries)
        ],
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="file to write (default: %(default)s)")
    path = parser.parse_args().output
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dashboard(), indent=2) + "\n")
    print(path)  # noqa: T201


if __name__ == "__main__":
    main()
