"""A daemon's replies in the words that an operator reads."""

from collections.abc import Callable, Iterator, Sequence
from math import floor

from controlplane.operate.gain import gain_rows
from controlplane.operate.printing import duration, echo, plain, print_json, print_table
from controlplane.operate.shadow_report import shadow_rows
from controlplane.wire.control import Fields

_PERCENT = "{:.0%}".format
_PHASES = {"held": "waiting"}  # "on hold" is what an operator holds: a person reads one word for each
_FEWEST_FORECASTS = 20  # programs that ended, from which errors of forecasts say something
_MOST_MOVES = 10  # the latest, below the engines


def show_status(status: Fields, *, json: bool) -> None:
    """Print a node's status, one line for each thing that matters."""
    if json:
        print_json(plain(status))
        return
    window, pressure = status.window, status.pressure
    rows = [
        ("node", f"{status.node}, preset {status.preset}, configuration {status.config.version}"),
        ("window", f"{window_words(window.limit, window.window)}: {window.reason}"),
        (
            "programs",
            f"{pressure.programs_active} active, {pressure.queue_length} waiting, {status.programs} known",
        ),
        ("KV", kv_line(pressure)),
        *([("engines", engines_line(status.engines))] if has_engines(status) else []),
        *([("tenants", tenants_line(status))] if status.tenants else []),
        *([("lease", lead)] if (lead := lead_line(status)) else []),
        *([("forecast", forecast_line(status.forecasts))] if status.forecasts else []),
        ("tools", ", ".join(tools_parts(pressure))),
        ("events", f"{status.counts.applied} applied, {status.rejected} rejected, {status.counts.gaps} gaps"),
    ]
    if line := sandboxes_line(status.sandboxes):
        rows.insert(-1, ("sandboxes", line))
    if status.refusals:
        rows.append(("unserved", ", ".join(f"{each.turns:,} {each.code}" for each in status.refusals)))
    rows += gain_rows(status)
    rows += shadow_rows(status)
    rows += [(each.level, finding_line(each)) for each in status.findings]
    print_table(("", ""), rows)


def window_words(limit: int, window: float) -> str:
    """How many programs may be active, and of how many where a cap takes some: ``4 of 12.3``."""
    if not limit:
        return "no limit"
    return f"{limit} of {window:.1f}" if limit < floor(window) else str(limit)


def phase_word(phase: str) -> str:
    """A phase as a person reads it."""
    return _PHASES.get(phase, phase)


def finding_line(finding: Fields) -> str:
    """What is wrong, and what to do, in one line."""
    return f"{title(finding)}: {finding.found} -> {finding.advice}"


def title(finding: Fields) -> str:
    """A finding's name in words."""
    return str(finding.name).replace("_", " ")


def kv_parts(pressure: Fields) -> list[str]:
    """The KV pool's use and size, what matters most first."""
    if not pressure.kv_total_blocks:
        return ["no engine has reported its pool yet"]
    state = (
        "overloaded" if pressure.kv_overloaded else ("room to grow" if pressure.kv_has_slack else "no room to grow")
    )
    parts = [
        f"{_PERCENT(pressure.kv_use_ratio)} of {pressure.kv_total_blocks:,} blocks in demand ({state})",
        f"{pressure.kv_free_blocks:,} free",
        f"{pressure.kv_evictable_blocks:,} cached",
        f"{pressure.kv_retained_blocks:,} retained",
    ]
    if pressure.host_total_blocks:
        parts.append(f"host {_PERCENT(pressure.host_used_blocks / pressure.host_total_blocks)} used")
    return parts


def kv_line(pressure: Fields) -> str:
    """The same in one line."""
    return ", ".join(kv_parts(pressure))


def forecast_line(forecasts: Sequence[Fields]) -> str:
    """How far forecasts of contexts were from what programs came to hold, in one line."""
    whole, *classes = forecasts
    if whole.ended < _FEWEST_FORECASTS:
        return f"too few to judge ({whole.ended} of {_FEWEST_FORECASTS} programs have ended)"
    summary = (
        f"contexts of {whole.ended} programs were forecast at {whole.expected_ratio:.2f} times their size, off by "
        f"{_off_by(whole)}"
    )
    judged = [each for each in classes if each.ended >= _FEWEST_FORECASTS]
    if len(judged) < 2:
        return summary
    worst = max(judged, key=lambda each: each.missed_ratio)
    return f"{summary}; worst class {worst.kind}: {worst.expected_ratio:.2f} times, off by {_off_by(worst)}"


def _off_by(forecast: Fields) -> str:
    """In percent of what programs came to hold; of more than all of it, how many times that."""
    missed = forecast.missed_ratio
    return f"{missed:.0%} of it" if missed < 1 else f"{missed:.1f} times it"


def tools_parts(pressure: Fields) -> list[str]:
    """The tool host's load, what matters most first."""
    return [
        f"{_PERCENT(pressure.cpu_use_ratio)} of {pressure.cpus:g} CPUs used"
        f" ({'overloaded' if pressure.cpu_overloaded else 'clear'})",
        f"{pressure.tools_active} tools running",
        f"{pressure.tools_waiting} waiting",
        f"{pressure.tool_slowdown_ratio:.2f} times their usual time",
    ]


def sandboxes_line(sandboxes: Fields) -> str:
    """What of programs is frozen on the tool host, and whether it was woken in time, in one line; else empty."""
    known = sandboxes.awake + sandboxes.frozen
    if not (known or sandboxes.woken):
        return ""
    since = f", for {duration(sandboxes.frozen_for_ns)} at most" if sandboxes.frozen else ""
    late = f", the last by {sandboxes.latest_late_ns / 1e9:.2f}s" if sandboxes.late else ""
    return (
        f"{sandboxes.frozen} of {known} frozen{since}; {sandboxes.held_bytes / (1 << 30):.1f} GiB held;"
        f" {sandboxes.woken} woken, {sandboxes.late} late{late}"
    )


def orders_line(orders: Fields) -> str:
    """The operator's orders in force, in one line."""
    parts = ["draining: no new program is let in"] if orders.draining else []
    held = [f"on hold by operator: {', '.join(orders.held)}"] if orders.held else []
    return "; ".join([*parts, *held]) or "none"


def has_engines(status: Fields) -> bool:
    """Whether engines are worth a look of their own: there are several, or one is not what it should be."""
    engines = status.engines
    return bool(engines.known > 1 or engines.draining or engines.gone or lead_line(status))


def engines_line(engines: Fields) -> str:
    """How many engines there are of each standing, in one line."""
    counts = ("serving", "draining", "gone", "silent")
    summary = [f"{getattr(engines, name)} {name}" for name in counts if name == "serving" or getattr(engines, name)]
    return f"{engines.known} engines: {', '.join(summary)}; {engines.moves:,} moves between them"


def tenants_line(status: Fields) -> str:
    """What tenants have had, in one line."""
    had = ", ".join(f"{row.tenant} {_PERCENT(row.kv_ratio)}" for row in status.tenants if row.turns or row.waiting)
    spent = [row.spent for row in status.tenants if row.spent]
    return "; ".join(
        [f"{had or 'no tenant has asked'} of KV x time", f"Jain {status.tenants_jain_index:.3f}", *spent]
    )


_TENANT_HEAD = (
    *("tenant", "weight", "share", "active", "waiting", "KV blocks", "KV token-s", "of all", "turns"),
    *("budget", "window", "refused", "got back"),
)


def _tenant_cells(row: Fields) -> tuple[str, ...]:
    return (
        row.tenant,
        f"{row.weight:g}",
        _PERCENT(row.share) if row.share else "",
        str(row.active),
        str(row.waiting),
        f"{row.kv_blocks:,}",
        f"{row.kv_token_s:,.0f}",
        _PERCENT(row.kv_ratio),
        f"{row.turns:,}",
        _PERCENT(row.spent_ratio) if row.spent_ratio else "",
        duration(row.window_ns) if row.spent_ratio else "",
        str(row.refused or ""),
        str(row.given_back or ""),
    )


def show_tenants(status: Fields, *, json: bool) -> None:
    """Print the tenants, one row each, what is spent, and how alike they were served."""
    if json:
        print_json({"tenants": plain(status.tenants), "jain_index": status.tenants_jain_index})
        return
    if not status.tenants:
        echo("no tenants: the configuration has no table [tenants.NAME]")
        return
    print_table(_TENANT_HEAD, [_tenant_cells(row) for row in status.tenants])
    for row in status.tenants:
        if row.spent:
            echo(f"spent: {row.spent}; {duration(row.window_ns)} to go")
    echo(f"Jain's index over what each has had for its weight: {status.tenants_jain_index:.3f}")


def lead_line(status: Fields) -> str:
    """Whether the daemon decides, where several could; else empty."""
    if status.stands_by:
        return "stands by: another daemon leads"
    return f"leads, by lease {status.fence}" if status.fence else ""


def _standing(engine: Fields) -> Iterator[str]:
    """What the engine may be given, and what is wrong with it."""
    yield engine.standing or "serving"
    if engine.silent:
        yield "does not answer"
    if engine.passive:
        yield "passive"
    if not engine.has_plugin:
        yield "no plugin"


ENGINE_CELLS: dict[str, Callable[[Fields], str]] = {
    "engine": lambda row: row.place,
    "address": lambda row: row.address,
    "standing": lambda row: ", ".join(_standing(row)),
    "KV demand": lambda row: (
        f"{_PERCENT(row.kv_use_ratio)} of {row.kv_total_blocks:,}" if row.kv_total_blocks else ""
    ),
    "free": lambda row: f"{row.kv_free_blocks:,}",
    "pinned": lambda row: f"{row.kv_retained_blocks:,}",
    "host": lambda row: _PERCENT(row.host_used_blocks / row.host_total_blocks) if row.host_total_blocks else "",
    "turns": lambda row: str(row.turns),
    "programs": lambda row: str(row.programs),
    "waiting": lambda row: str(row.waiting),
    "heard": lambda row: f"{duration(row.heard_ns)} ago" if row.heard_ns else "never",
}


def show_engines(listed: Fields, *, json: bool) -> None:
    """Print the engines, one row each, and who moved between them last."""
    if json:
        print_json({"engines": plain(listed.engines), "total": listed.total, "moves": plain(listed.moves)})
        return
    if not listed.engines:
        echo("no engine has reported yet")
        return
    names = [name for name in ENGINE_CELLS if name != "address" or any(each.address for each in listed.engines)]
    print_table(names, [[ENGINE_CELLS[name](engine) for name in names] for engine in listed.engines])
    if left := listed.total - len(listed.engines):
        echo(f"and {left} more")
    for engine in listed.engines:
        if engine.passive:
            echo(f"passive: {engine.place}: {engine.passive}")
    for move in listed.moves[:_MOST_MOVES]:
        echo(f"moved: {move_line(move)}")


def move_line(move: Fields) -> str:
    """Who went from where to where, and why, in one line."""
    return f"{move.program_id}: {move.from_place} to {move.to_place}; {move.reason}"


def are_several(programs: Sequence[Fields]) -> bool:
    """Whether the programs ran on different engines, so that each row says on which."""
    return len({program.replica for program in programs if program.replica}) > 1


PROGRAM_CELLS: dict[str, Callable[[Fields], str]] = {
    "program": lambda row: row.program_id + (" (on hold)" if row.held_by_operator else ""),
    "status": lambda row: row.status + (f" #{row.queue_position}" if row.queue_position else ""),
    "phase": lambda row: phase_word(row.phase),
    "tool": lambda row: row.tool,
    "turns": lambda row: str(row.turns),
    "tokens": lambda row: f"{row.context_tokens:,}",
    "tier": lambda row: row.kv_tier,
    "idle": lambda row: duration(row.idle_ns),
    "waited": lambda row: duration(row.hold_ns),
    "pinned": lambda row: duration(row.retained_ns),
    "idleness": lambda row: f"{row.idleness_ratio:.2f}",
    "engine": lambda row: row.replica,
    "moves": lambda row: str(row.moves or ""),
    "tenant": lambda row: row.tenant,
    "waits for": lambda row: row.waits_for,
}


def show_programs(listed: Fields, *, json: bool, waits: bool = False) -> None:
    """Print a list of programs, one row each; ``waits``: with what each waits for."""
    programs = listed.programs
    if json:
        print_json([plain(program) for program in programs])
    elif programs:
        left_out = {"tenant"} | ({"waits for"} if not waits else set())
        left_out |= {"engine", "moves"} if not are_several(programs) else set()
        names = [name for name in PROGRAM_CELLS if name not in left_out]
        print_table(names, [[PROGRAM_CELLS[name](program) for name in names] for program in programs])
        if left := listed.total - len(programs):
            echo(f"and {left} more")
    else:
        echo("none")


def show_orders(orders: Fields, *, json: bool) -> None:
    """Print the orders in force."""
    if json:
        print_json(plain(orders))
    else:
        echo(f"orders: {orders_line(orders)}")


def show_config(config: Fields, *, json: bool, preset: str = "", before: str = "") -> None:
    """Print which configuration is in force; after a change of the ``preset`` also how to go back to ``before``."""
    if json:
        print_json(plain(config))
        return
    version = f"configuration {config.version}"
    said = f"preset {preset} is in force, as {version}" if preset else f"{version} is in force"
    echo(said + (f"; it was {before}" if preset != before else ""))
    if preset != before:
        echo(f"Back: `penstock set-preset {before}`; a restart goes back to what the daemon is started with.")
    if config.until_restart:
        echo(f"waiting for a restart: {', '.join(config.until_restart)}")
