"""What is read of a daemon's status and of its regret when somebody looks: a table of instruments."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from controlplane.core.model.causes import side_of
from controlplane.core.model.events import REFUSALS
from controlplane.core.regret import Sums
from controlplane.daemon.experiment import MEASURES, ExperimentStatus
from controlplane.daemon.shadow.shadow import DECIDES, FAILED, THIN, ShadowStatus
from controlplane.daemon.status.health import RULES
from controlplane.daemon.status.status import Status

Values = Iterable[tuple[float, dict[str, str]]]
_Source = TypeVar("_Source")
_KV = ("total", "free", "evictable", "retained", "demand")
_STANDINGS = ("serving", "draining", "gone", "silent")
_APPLIED = ("applied", "duplicates", "gaps", "contradictions", "late", "admitted_unasked", "taken_back")


@dataclass(frozen=True, slots=True)
class Instrument(Generic[_Source]):
    """An instrument whose values are read from a source. ``grows``: a counter, else a gauge."""

    name: str
    unit: str
    read: Callable[[_Source], Values]
    description: str
    grows: bool = False


def _counter(name: str, unit: str, read: Callable[[_Source], Values], description: str) -> Instrument[_Source]:
    return Instrument(name, unit, read, description, grows=True)


def make(meter: Meter, table: Iterable[Instrument[_Source]], source: Callable[[str], _Source]) -> None:
    """Make the instruments. ``source`` gives what the instrument of that name is to read."""

    def callback(each: Instrument[_Source]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(value, labels) for value, labels in each.read(source(each.name))]

    for each in table:
        create: Any = meter.create_observable_counter if each.grows else meter.create_observable_gauge
        create(each.name, [callback(each)], unit=each.unit, description=each.description)


# How a value is found


def _value(path: str) -> Callable[[Any], Values]:
    """One without a label."""
    read = attrgetter(path)
    return lambda source: [(float(read(source)), {})]


def _by(label: str, **paths: str) -> Callable[[Status], Values]:
    """One at each path, with the path's name as label."""
    reads = {name: attrgetter(path) for name, path in paths.items()}
    return lambda status: [(float(read(status)), {label: name}) for name, read in reads.items()]


def _each(rows: str, value: str, label: str, name: str) -> Callable[[Any], Values]:
    """One of each row, with the row's name as label."""
    rows_of, read, name_of = attrgetter(rows), attrgetter(value), attrgetter(name)
    return lambda source: [(float(read(row)), {label: name_of(row)}) for row in rows_of(source)]


def _shadow(read: Callable[[ShadowStatus], Values]) -> Callable[[Status], Values]:
    """Of a shadow, where there is one."""
    return lambda status: read(status.shadow) if status.shadow is not None else ()


def _experiment(read: Callable[[ExperimentStatus], Values]) -> Callable[[Status], Values]:
    """Of an experiment, where there is one."""
    return lambda status: read(status.experiment) if status.experiment is not None else ()


def _changes(name: str, of: Callable[[Any], Any], rows: str, what: str) -> Iterable[Instrument[Status]]:
    """Changes, and the ends of their intervals."""
    end = "end of that change's 95% interval; the change itself where the interval is not known"
    texts = {"value": ("", what), "low": ("_low", f"Lower {end}"), "high": ("_high", f"Upper {end}")}
    for field, (suffix, text) in texts.items():
        yield Instrument(f"penstock.{name}.change{suffix}_ratio", "", of(_each(rows, field, "of", "name")), text)


def _findings(status: Status) -> Values:
    found = {each.name for each in status.findings}
    return [(float(rule.name in found), {"finding": rule.name, "level": str(rule.level)}) for rule in RULES]


def _refusals(status: Status) -> Values:
    turns = {each.code: each.turns for each in status.refusals}
    return [(float(turns.get(code, 0)), {"code": code}) for code in (*REFUSALS, "other")]


def _compared(shadow: ShadowStatus) -> Values:
    counts = asdict(shadow.counts)
    counts.pop("order")  # it is part of another kind
    return [(float(count), {"kind": kind}) for kind, count in counts.items()]


def _verdicts(value: str, *labels: str) -> Callable[[Sums], Values]:
    """A total of verdicts, summed up by some of what tells them apart."""

    def read(sums: Sums) -> Values:
        found: Counter[tuple[str, ...]] = Counter()
        for (kind, outcome, cause), total in list(sums.totals.items()):  # in any thread: a copy
            known = {"kind": kind, "outcome": outcome.value, "cause": cause.value}
            found[tuple(known[label] for label in labels)] += getattr(total, value)
        return [(number, dict(zip(labels, names, strict=True))) for names, number in found.items()]

    return read


def _again(value: str) -> Callable[[Sums], Values]:
    """What was computed again, by client, by who could have spared it, and by cause."""

    def read(sums: Sums) -> Values:
        return [
            (getattr(again, value), {"client": name, "side": side_of(cause), "cause": cause.value})
            for name, prefill in list(sums.clients.items())  # in any thread: a copy
            for cause, again in list(prefill.again.items())
        ]

    return read


def _prefill(sums: Sums) -> Values:
    return [(prefill.computed_tokens, {"client": name}) for name, prefill in list(sums.clients.items())]


REGRET: tuple[Instrument[Sums], ...] = (
    _counter(
        "penstock.verdicts",
        "",
        _verdicts("count", "kind", "outcome", "cause"),
        "Decisions that were closed by what happened, by their kind, outcome and cause",
    ),
    _counter(
        "penstock.regret.again_tokens",
        "{token}",
        _verdicts("again_tokens", "kind", "cause"),
        "Tokens computed again, by the decision that they are charged to and why",
    ),
    _counter(
        "penstock.regret.cost",
        "s",
        _verdicts("cost_s", "kind"),
        "What decisions cost: memory, waiting and prefill, in seconds of an engine",
    ),
    _counter(
        "penstock.regret.gain",
        "s",
        _verdicts("gain_s", "kind"),
        "What decisions gained: prefill that was saved and memory that was freed",
    ),
    _counter("penstock.regret.paid", "s", _verdicts("paid_s"), "What gaps between turns cost as they were decided"),
    _counter(
        "penstock.regret.best",
        "s",
        _verdicts("best_s"),
        "What the same gaps would have cost in hindsight; paid over best is the regret, 1 at its least",
    ),
    _counter(
        "penstock.regret.pins_lost",
        "",
        lambda sums: [(sums.pins_lost, {})],
        "Pins that engines gave up before their time",
    ),
    _counter(
        "penstock.prefill.tokens", "{token}", _prefill, "Tokens that were prefilled, by client and its version"
    ),
    _counter(
        "penstock.misses.tokens",
        "{token}",
        _again("tokens"),
        "Of these, tokens computed again, by client, by whose side could have spared them, and why",
    ),
    _counter(
        "penstock.misses.time",
        "s",
        _again("seconds"),
        "Time of prefill for tokens computed again, by client, by whose side could have spared it, and why",
    ),
)

STATES: tuple[Instrument[Status], ...] = (
    *(
        Instrument(f"penstock.{name}", unit, _value(path), description)
        for name, unit, path, description in (
            ("window.limit", "{program}", "window.limit", "Root programs that may be active; 0: no limit"),
            ("window.raw", "{program}", "window.window", "The admission window before its caps"),
            (
                "programs.known",
                "{program}",
                "programs",
                "Programs that the daemon remembers, including children and ended ones",
            ),
            ("waiting.turns", "{turn}", "held.turns", "Turns that gates hold"),
            (
                "waiting.kv_tokens",
                "{token}",
                "held.kv_tokens",
                "KV that the held turns of waiting programs ask for",
            ),
            (
                "waiting.kv_token_seconds",
                "",
                "held.kv_token_s",
                "KV x time that waiting programs are expected to hold until they end; 0 until turns have ended",
            ),
            ("waiting.longest", "s", "held.longest_s", "Time for which the first program of the queue has waited"),
            (
                "waiting.expected",
                "s",
                "held.expected_s",
                "Time that a program would wait that came now; 0: not known",
            ),
            (
                "waiting.promised",
                "s",
                "held.promised_s",
                "Time that newcomers were expected to wait, mean of the latest",
            ),
            ("waiting.missed", "s", "held.missed_s", "By how much that was wrong, mean of the latest"),
            ("kv.block_tokens", "{token}", "block_tokens", "Tokens that a block of the KV pool holds"),
            (
                "kv.use_ratio",
                "",
                "pressure.kv_use_ratio",
                "Share of the KV pool that active programs need; may exceed 1",
            ),
            (
                "tools.slowdown_ratio",
                "",
                "pressure.tool_slowdown_ratio",
                "Moving average of a tool's time over its usual time",
            ),
            ("host.cpus", "{cpu}", "pressure.cpus", "CPUs that tools may use"),
            ("host.cpu_use_ratio", "", "pressure.cpu_use_ratio", "Share of the host's CPUs in use"),
            (
                "host.cpu_stall_ratio",
                "",
                "pressure.cpu_stall_ratio",
                "Share of time for which some task waited for a CPU",
            ),
            ("sandboxes.frozen", "{sandbox}", "sandboxes.frozen", "Sandboxes that are frozen"),
            ("sandboxes.memory", "By", "sandboxes.held_bytes", "Memory that sandboxes hold, as far as known"),
            ("draining", "", "orders.draining", "1 while the node drains, so that nobody is let in"),
            ("bus.connected", "", "bus_connected", "1 while the daemon's own messages come back over its bus"),
            (
                "config.version",
                "",
                "config.version",
                "Version of the configuration in force, 1 when the daemon starts",
            ),
        )
    ),
    Instrument(
        "penstock.programs",
        "{program}",
        _by("status", active="pressure.programs_active", waiting="pressure.queue_length"),
        "Root programs, active or waiting",
    ),
    _counter(
        "penstock.connections.refused",
        "{connection}",
        _each("listeners", "refused", "listener", "name"),
        "Connections that a listener did not take, or ended as they broke a bound",
    ),
    Instrument(
        "penstock.kv.blocks",
        "{block}",
        _by("state", **{state: f"pressure.kv_{state}_blocks" for state in _KV}),
        "Blocks of the KV pool by state",
    ),
    Instrument(
        "penstock.kv.host_blocks",
        "{block}",
        _by("state", total="pressure.host_total_blocks", used="pressure.host_used_blocks"),
        "Blocks of the KV cache in host memory",
    ),
    Instrument(
        "penstock.forecast.expected_ratio",
        "",
        lambda s: [(each.expected_ratio, {}) for each in s.forecasts[:1]],
        "Forecast of programs' longest contexts over their actual length; 1: no bias",
    ),
    Instrument(
        "penstock.forecast.missed_ratio",
        "",
        lambda s: [(each.missed_ratio, {}) for each in s.forecasts[:1]],
        "Absolute error of those forecasts over the contexts' actual length",
    ),
    Instrument(
        "penstock.tools",
        "{tool}",
        _by("state", active="pressure.tools_active", waiting="pressure.tools_waiting"),
        "Tool calls by state",
    ),
    Instrument(
        "penstock.overloaded",
        "",
        _by("side", kv="pressure.kv_overloaded", cpu="pressure.cpu_overloaded"),
        "1 while that side counts as overloaded",
    ),
    Instrument(
        "penstock.held_by_operator",
        "{program}",
        lambda s: [(float(len(s.orders.held)), {})],
        "Programs that an operator holds",
    ),
    Instrument(
        "penstock.engines",
        "{engine}",
        _by("standing", **{standing: f"engines.{standing}" for standing in _STANDINGS}),
        "Engines by standing; silent: they serve, and do not answer",
    ),
    _counter(
        "penstock.moves",
        "{program}",
        _value("engines.moves"),
        "Moves of programs from one engine to another, since the state began",
    ),
    *(
        Instrument(f"penstock.tenant.{name}", unit, _each("tenants", field, "tenant", "tenant"), description, grows)
        for name, field, unit, grows, description in (
            ("kv_token_seconds", "kv_token_s", "", True, "KV tokens x seconds that a tenant's programs have held"),
            ("turns", "turns", "{turn}", True, "Turns of a tenant's programs that engines took"),
            ("refused", "refused", "", True, "Turns and runs of a tenant that a spent budget cost"),
            ("given_back", "given_back", "", True, "Slots that a tenant got back of the share that it had lent"),
            ("kv_blocks", "kv_blocks", "{block}", False, "Blocks that a tenant's programs hold and do not lend"),
            ("active", "active", "{program}", False, "Root programs of a tenant that have a slot"),
            ("waiting", "waiting", "{program}", False, "Root programs of a tenant that wait for one"),
            ("spent_ratio", "spent_ratio", "", False, "Share of a tenant's budget that its window has spent"),
        )
    ),
    Instrument(
        "penstock.tenants.jain_index",
        "",
        lambda s: [(s.tenants_jain_index, {})] if s.tenants else [],
        "Jain's index over what tenants have had for their weights; 1: all alike",
    ),
    Instrument(
        "penstock.leading",
        "",
        lambda s: [(float(not s.stands_by), {"node": s.node})],
        "1 while this daemon decides for its node or fleet, 0 while it stands by",
    ),
    Instrument(
        "penstock.shadow.deciding",
        "",
        _shadow(lambda s: [(float(s.standing in (DECIDES, THIN)), {"preset": s.preset})]),
        "1 while the shadow of that preset decides, 0 while it rests, waits or has failed",
    ),
    Instrument(
        "penstock.shadow.failed",
        "",
        _shadow(lambda s: [(float(s.standing == FAILED), {})]),
        "1 once an error of its own has switched the shadow off",
    ),
    _counter(
        "penstock.shadow.decisions",
        "",
        _shadow(_compared),
        "Decisions by how the shadow's compare with those in force, since the two are compared",
    ),
    Instrument(
        "penstock.shadow.window.limit",
        "{program}",
        _shadow(_value("window.limit")),
        "The shadow's window: root programs that it would have active; 0: no limit",
    ),
    Instrument(
        "penstock.shadow.ahead",
        "{program}",
        _shadow(_value("ahead")),
        "Programs that the shadow has let in and the daemon holds",
    ),
    Instrument(
        "penstock.shadow.cpu_ratio",
        "",
        _shadow(_value("cpu_ratio")),
        "Share of the daemon's CPU time that the shadow took",
    ),
    _counter(
        "penstock.shadow.rests",
        "",
        _shadow(_value("rests")),
        "Times that the shadow had used up its share of CPU time",
    ),
    _counter(
        "penstock.shadow.estimates",
        "",
        _shadow(_value("estimate.made")),
        "Estimates that were made of what the shadow would change",
    ),
    *_changes(
        "shadow",
        _shadow,
        "estimate.changes",
        "What the shadow is estimated to change: of times a ratio less 1, of the hit rate a difference",
    ),
    Instrument(
        "penstock.gain.stock",
        "",
        _experiment(lambda e: [(float(e.is_stock), {"ended": "" if e.standing == MEASURES else e.standing})]),
        "1 while the experiment has fcfs in force; ended: why it measures no more",
    ),
    *_changes("gain", _experiment, "changes", "What the preset changes of what fcfs has, measured: a ratio less 1"),
    Instrument(
        "penstock.finding",
        "",
        _findings,
        "1 while that is wrong; level bad: it does not work, look: it does, note: it is so on purpose",
    ),
    _counter(
        "penstock.turns.refused",
        "{turn}",
        _refusals,
        "Turns that left gates unserved, by why, since the state began",
    ),
    _counter("penstock.sandboxes.woken", "", _value("sandboxes.woken"), "Sandboxes that were woken"),
    _counter("penstock.sandboxes.late", "", _value("sandboxes.late"), "Sandboxes woken while a tool waited"),
    _counter("penstock.messages.set_aside", "", _value("set_aside"), "Messages that could not be applied"),
    _counter(
        "penstock.failures",
        "",
        _each("failures", "count", "what", "what"),
        "Errors that ended nothing, by what raised them: a task was started again, a message set aside",
    ),
    _counter("penstock.config.refusals", "", _value("config.refusals"), "Configurations that were refused"),
    _counter(
        "penstock.events",
        "",
        _by("kind", **{kind: f"counts.{kind}" for kind in _APPLIED}, rejected="rejected", refused="refused"),
        "Events by what became of them, since the node's state began",
    ),
    _counter(
        "penstock.commands.answered",
        "",
        _by("answer", applied="counts.commands_applied", rejected="counts.commands_rejected"),
        "Commands that engines and gates answered",
    ),
)
