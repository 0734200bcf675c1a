"""A daemon's replies in the words that an operator reads."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import typer

from controlplane.operate.printing import print_json, print_table
from controlplane.wire.control import Fields
from controlplane.wire.names import snake_case

_PERCENT = "{:.0%}".format


def show_status(status: Fields, *, json: bool) -> None:
    """Print a node's status, one line for each thing that matters."""
    if json:
        print_json(plain(status))
        return
    window, pressure, orders = status.window, status.pressure, status.orders
    limit = window.limit or "no limit"
    rows = [
        ("node", f"{status.node}, preset {status.preset}, configuration {status.config.version}"),
        ("window", f"{limit} (before caps {window.window:.1f}): {window.reason}"),
        (
            "programs",
            f"{pressure.programs_active} active, {pressure.queue_length} waiting, {status.programs} known",
        ),
        ("KV", kv_line(pressure)),
        *([("forecast", forecast_line(status.forecasts))] if status.forecasts else []),
        ("tools", tools_line(pressure)),
        ("events", f"{status.counts.applied} applied, {status.rejected} rejected, {status.counts.gaps} gaps"),
    ]
    if not status.bus_connected:
        rows.append(("bus", "away, or keeps nothing: gates admit on their own until it is back"))
    if orders.draining or orders.held:
        rows.append(("orders", orders_line(orders)))
    if status.config.refused:
        rows.append(("refused", status.config.refused))
    if status.config.until_restart:
        rows.append(("restart", f"needed for {', '.join(status.config.until_restart)}"))
    print_table(("", ""), rows)


def kv_line(pressure: Fields) -> str:
    """The KV pool's use and size in one line."""
    if not pressure.kv_total_blocks:
        return "no engine has reported its pool yet"
    state = "overloaded" if pressure.kv_overloaded else ("slack" if pressure.kv_has_slack else "no slack")
    parts = [
        f"{_PERCENT(pressure.kv_use_ratio)} of {pressure.kv_total_blocks:,} blocks in demand ({state})",
        f"{pressure.kv_free_blocks:,} free",
        f"{pressure.kv_retained_blocks:,} retained",
    ]
    if pressure.host_total_blocks:
        parts.append(f"host {_PERCENT(pressure.host_used_blocks / pressure.host_total_blocks)} used")
    return ", ".join(parts)


def forecast_line(forecasts: Sequence[Fields]) -> str:
    """How far forecasts of contexts were from what programs came to hold, in one line."""
    whole, *classes = forecasts
    said = (
        f"{whole.expected_ratio:.2f} of what {whole.ended} programs came to hold, off by {whole.missed_ratio:.0%}"
    )
    if len(classes) < 2:
        return said
    worst = max(classes, key=lambda each: each.missed_ratio)
    return f"{said}; worst class {worst.kind}: {worst.expected_ratio:.2f}, off by {worst.missed_ratio:.0%}"


def tools_line(pressure: Fields) -> str:
    """The tool host's load in one line."""
    state = "overloaded" if pressure.cpu_overloaded else "clear"
    running = f"{pressure.tools_active} running, {pressure.tools_waiting} waiting"
    host = f"{pressure.cpus:g} CPUs {_PERCENT(pressure.cpu_use_ratio)} used ({state})"
    return f"{running}; {host}, tools {pressure.tool_slowdown_ratio:.2f} times their usual time"


def orders_line(orders: Fields) -> str:
    """The operator's orders in force, in one line."""
    parts = ["draining: nobody is let in"] if orders.draining else []
    return "; ".join([*parts, *([f"held: {', '.join(orders.held)}"] if orders.held else [])]) or "none"


PROGRAM_HEAD = (
    "program",
    "status",
    "phase",
    "tool",
    "turns",
    "tokens",
    "tier",
    "idle",
    "held",
    "pinned",
    "idleness",
)


def program_cells(program: Fields) -> tuple[str, ...]:
    """One program's cells below ``PROGRAM_HEAD``."""
    position = f" #{program.queue_position}" if program.queue_position else ""
    return (
        program.program_id + (" (held)" if program.held_by_operator else ""),
        program.status + position,
        program.phase,
        program.tool,
        str(program.turns),
        f"{program.context_tokens:,}",
        program.kv_tier,
        duration(program.idle_ns),
        duration(program.hold_ns),
        duration(program.retained_ns),
        f"{program.idleness_ratio:.2f}",
    )


def show_programs(listed: Fields, *, json: bool) -> None:
    """Print a list of programs, one row each."""
    programs = listed.programs
    if json:
        print_json([plain(program) for program in programs])
    elif programs:
        print_table(PROGRAM_HEAD, [program_cells(program) for program in programs])
        if left := listed.total - len(programs):
            typer.echo(f"and {left} more")
    else:
        typer.echo("none")


def show_orders(orders: Fields, *, json: bool) -> None:
    """Print the orders in force."""
    if json:
        print_json(plain(orders))
    else:
        typer.echo(f"orders: {orders_line(orders)}")


def show_config(config: Fields, *, json: bool) -> None:
    """Print which configuration is in force."""
    if json:
        print_json(plain(config))
        return
    typer.echo(f"configuration {config.version} is in force")
    if config.until_restart:
        typer.echo(f"waiting for a restart: {', '.join(config.until_restart)}")


def show_decision(decision: Fields, *, json: bool) -> None:
    """Print one decision in one line, with its reason."""
    if decision.missed:
        typer.echo(f"{decision.missed} decisions were missed", err=True)
    command = decision.command
    if command is None:
        return  # of a kind that is newer than this program
    kind = snake_case(type(command))
    if json:
        typer.echo(msgspec.json.encode({"at_ns": decision.at_ns, "kind": kind, **asdict(command)}).decode())
        return
    about = getattr(command, "program_id", "")
    ttl_ns = getattr(command, "ttl_ns", 0)
    until = f" for {duration(ttl_ns)}" if ttl_ns else ""
    typer.echo(f"{time.strftime('%H:%M:%S')}  {kind}{until} {about}  {command.reason}")


def duration(value_ns: int) -> str:
    """A duration as a person says it, such as ``3m05s``; empty for none."""
    value_s = value_ns / 1e9
    if value_ns <= 0:
        return ""
    if value_s < 60:
        return f"{value_s:.1f}s"
    minutes, rest_s = divmod(round(value_s), 60)
    return f"{minutes}m{rest_s:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


def plain(fields: Any) -> Any:
    """``Fields``, also nested in lists and other fields, as plain mappings."""
    if isinstance(fields, Fields):
        return {name: plain(value) for name, value in vars(fields).items()}
    return [plain(each) for each in fields] if isinstance(fields, list) else fields
