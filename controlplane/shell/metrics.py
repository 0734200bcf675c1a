"""What a node measures, as OpenTelemetry instruments: Prometheus reads them, OTLP sends them.

What each of its engines measures is in ``engine_metrics``.
States are read when somebody looks; what happens is counted as it happens. No instrument has a program's name:
there would be as many series as programs.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from anyio.lowlevel import checkpoint
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from controlplane.core import events as ev
from controlplane.core.commands import Admit, Command
from controlplane.core.controller import Controller
from controlplane.core.types import NANOSECONDS_PER_SECOND
from controlplane.shell.advise_metrics import ADVISE_STATES
from controlplane.shell.engine_metrics import EngineTokens
from controlplane.shell.engines import EngineRow
from controlplane.shell.health_metrics import HEALTH_STATES
from controlplane.shell.shadow_metrics import SHADOW_STATES
from controlplane.shell.state_metrics import State, Values, one
from controlplane.shell.status import Status
from controlplane.wire.names import snake_case


def _kv(status: Status) -> Values:
    states = ("total", "free", "evictable", "retained", "demand")
    return [(getattr(status.pressure, f"kv_{state}_blocks"), {"state": state}) for state in states]


def _host_kv(status: Status) -> Values:
    return [(getattr(status.pressure, f"host_{state}_blocks"), {"state": state}) for state in ("total", "used")]


def _events(status: Status) -> Values:
    kinds = ("applied", "duplicates", "gaps", "contradictions", "late", "admitted_unasked", "taken_back")
    found = [(getattr(status.counts, kind), {"kind": kind}) for kind in kinds]
    return [*found, (status.rejected, {"kind": "rejected"}), (status.refused, {"kind": "refused"})]


def _answers(status: Status) -> Values:
    counts = status.counts
    return [(counts.commands_applied, {"answer": "applied"}), (counts.commands_rejected, {"answer": "rejected"})]


def _of_tenants(field: str) -> Callable[[Status], Values]:
    return lambda status: [(getattr(row, field), {"tenant": row.tenant}) for row in status.tenants]


STATES = (
    State(
        name="penstock.window.limit",
        unit="{program}",
        description="Root programs that may be active; 0: no limit",
        read=lambda s: one(s.window.limit),
    ),
    State(
        name="penstock.window.raw",
        unit="{program}",
        description="The admission window before its caps",
        read=lambda s: one(s.window.window),
    ),
    State(
        name="penstock.programs",
        unit="{program}",
        description="Root programs, active or waiting",
        read=lambda s: [
            (s.pressure.programs_active, {"status": "active"}),
            (s.pressure.queue_length, {"status": "waiting"}),
        ],
    ),
    State(
        name="penstock.programs.known",
        unit="{program}",
        description="Programs that the daemon remembers, including children and ended ones",
        read=lambda s: one(s.programs),
    ),
    State(
        name="penstock.waiting.turns",
        unit="{turn}",
        description="Turns that gates hold",
        read=lambda s: one(s.held.turns),
    ),
    State(
        name="penstock.waiting.kv_tokens",
        unit="{token}",
        description="KV that the held turns of waiting programs ask for",
        read=lambda s: one(s.held.kv_tokens),
    ),
    State(
        name="penstock.waiting.kv_token_seconds",
        unit="",
        description="KV x time that waiting programs are expected to hold until they end; 0 until turns have ended",
        read=lambda s: one(s.held.kv_token_s),
    ),
    State(
        name="penstock.waiting.longest",
        unit="s",
        description="Time for which the first program of the queue has waited",
        read=lambda s: one(s.held.longest_s),
    ),
    State(
        name="penstock.connections.refused",
        unit="{connection}",
        description="Connections that a listener did not take, or ended as they broke a bound",
        read=lambda s: [(row.refused, {"listener": row.name}) for row in s.listeners],
        grows=True,
    ),
    State(name="penstock.kv.blocks", unit="{block}", description="Blocks of the KV pool by state", read=_kv),
    State(
        name="penstock.kv.block_tokens",
        unit="{token}",
        description="Tokens that a block of the KV pool holds",
        read=lambda s: one(s.block_tokens),
    ),
    State(
        name="penstock.kv.host_blocks",
        unit="{block}",
        description="Blocks of the KV cache in host memory",
        read=_host_kv,
    ),
    State(
        name="penstock.kv.use_ratio",
        unit="",
        description="Share of the KV pool that active programs need; may exceed 1",
        read=lambda s: one(s.pressure.kv_use_ratio),
    ),
    State(
        name="penstock.forecast.expected_ratio",
        unit="",
        description="Forecast of programs' longest contexts over their actual length; 1: no bias",
        read=lambda s: [(each.expected_ratio, {}) for each in s.forecasts[:1]],
    ),
    State(
        name="penstock.forecast.missed_ratio",
        unit="",
        description="Absolute error of those forecasts over the contexts' actual length",
        read=lambda s: [(each.missed_ratio, {}) for each in s.forecasts[:1]],
    ),
    State(
        name="penstock.tools",
        unit="{tool}",
        description="Tool calls by state",
        read=lambda s: [
            (s.pressure.tools_active, {"state": "active"}),
            (s.pressure.tools_waiting, {"state": "waiting"}),
        ],
    ),
    State(
        name="penstock.tools.slowdown_ratio",
        unit="",
        description="Moving average of a tool's time over its usual time",
        read=lambda s: one(s.pressure.tool_slowdown_ratio),
    ),
    State(
        name="penstock.host.cpus",
        unit="{cpu}",
        description="CPUs that tools may use",
        read=lambda s: one(s.pressure.cpus),
    ),
    State(
        name="penstock.host.cpu_use_ratio",
        unit="",
        description="Share of the host's CPUs in use",
        read=lambda s: one(s.pressure.cpu_use_ratio),
    ),
    State(
        name="penstock.host.cpu_stall_ratio",
        unit="",
        description="Share of time for which some task waited for a CPU",
        read=lambda s: one(s.pressure.cpu_stall_ratio),
    ),
    State(
        name="penstock.overloaded",
        unit="",
        description="1 while that side counts as overloaded",
        read=lambda s: [(s.pressure.kv_overloaded, {"side": "kv"}), (s.pressure.cpu_overloaded, {"side": "cpu"})],
    ),
    State(
        name="penstock.draining",
        unit="",
        description="1 while the node drains, so that nobody is let in",
        read=lambda s: one(s.orders.draining),
    ),
    State(
        name="penstock.held_by_operator",
        unit="{program}",
        description="Programs that an operator holds",
        read=lambda s: one(len(s.orders.held)),
    ),
    State(
        name="penstock.engines",
        unit="{engine}",
        description="Engines by standing; silent: they serve, and do not answer",
        read=lambda s: [
            (getattr(s.engines, standing), {"standing": standing})
            for standing in ("serving", "draining", "gone", "silent")
        ],
    ),
    State(
        name="penstock.moves",
        unit="{program}",
        description="Moves of programs from one engine to another, since the state began",
        read=lambda s: one(s.engines.moves),
        grows=True,
    ),
    *(
        State(
            name=f"penstock.tenant.{name}",
            unit=unit,
            description=description,
            read=_of_tenants(field),
            grows=grows,
        )
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
    State(
        name="penstock.tenants.jain_index",
        unit="",
        description="Jain's index over what tenants have had for their weights; 1: all alike",
        read=lambda s: [(s.tenants_jain_index, {})] if s.tenants else [],
    ),
    State(
        name="penstock.leading",
        unit="",
        description="1 while this daemon decides for its node or fleet, 0 while it stands by",
        read=lambda s: [(not s.stands_by, {"node": s.node})],
    ),
    *SHADOW_STATES,
    *ADVISE_STATES,
    *HEALTH_STATES,
    State(
        name="penstock.failures",
        unit="",
        description="Errors that ended nothing, by what raised them: a task was started again, a message set aside",
        read=lambda s: [(each.count, {"what": each.what}) for each in s.failures],
        grows=True,
    ),
    State(
        name="penstock.bus.connected",
        unit="",
        description="1 while the daemon's own messages come back over its bus",
        read=lambda s: one(s.bus_connected),
    ),
    State(
        name="penstock.config.version",
        unit="",
        description="Version of the configuration in force, 1 when the daemon starts",
        read=lambda s: one(s.config.version),
    ),
    State(
        name="penstock.config.refusals",
        unit="",
        description="Configurations that were refused",
        read=lambda s: one(s.config.refusals),
        grows=True,
    ),
    State(
        name="penstock.events",
        unit="",
        description="Events by what became of them, since the node's state began",
        read=_events,
        grows=True,
    ),
    State(
        name="penstock.commands.answered",
        unit="",
        description="Commands that engines and gates answered",
        read=_answers,
        grows=True,
    ),
)
_AT_ONCE = 64  # engines that are looked at in one go: well below a millisecond
_MOST_ASKED = 100_000  # turns whose first token is waited for; whoever asked first is forgotten
_LONG_S = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)


class Look:
    """The status and the engines at one instant, which every instrument reads once.

    Who reads it again collects anew, and a new look is taken. ``take`` takes one beforehand: where a thread reads
    the instruments, the daemon's own records are left to the daemon. Among very many engines it lets that go on.
    """

    def __init__(self, status: Callable[[], Status], engines: Callable[[], Iterable[EngineRow]]) -> None:
        self._status, self._engines = status, engines
        self._taken: _Taken | None = None

    async def take(self) -> None:
        """Look now, in the daemon's thread."""
        status, rows = self._status(), list[EngineRow]()
        for number, row in enumerate(self._engines(), 1):
            rows.append(row)
            if not number % _AT_ONCE:
                await checkpoint()
        self._taken = _Taken(status, rows)

    def status(self, reader: str) -> Status:
        """The status, for the instrument of that name."""
        return self._for(reader).status

    def engines(self, reader: str) -> Sequence[EngineRow]:
        """The engines, for the instrument of that name."""
        return self._for(reader).engines

    def _for(self, reader: str) -> "_Taken":
        taken = self._taken
        if taken is None or reader in taken.readers:
            taken = self._taken = _Taken(self._status(), list(self._engines()))
        taken.readers.add(reader)
        return taken


@dataclass(frozen=True, slots=True)
class _Taken:
    status: Status
    engines: Sequence[EngineRow]
    readers: set[str] = field(default_factory=set)


class Metrics:
    """The instruments of one daemon; a ``Recorder`` of what happens, of engines' ``tokens`` too."""

    def __init__(
        self, meter: Meter, look: Look, controller: Callable[[], Controller], tokens: EngineTokens
    ) -> None:
        self._controller = controller
        self._of_engines = tokens
        for state in STATES:
            make: Any = meter.create_observable_counter if state.grows else meter.create_observable_gauge
            make(state.name, [_callback(state, look)], unit=state.unit, description=state.description)
        # A counter of the SDK takes microseconds a time, which is too much for every event: these are read.
        self._commands: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        for name, label, counts, description in (
            ("penstock.commands", "kind", self._commands, "Commands sent, by kind"),
            ("penstock.turns", "ok", self._turns, "Turns that ended, by success"),
            ("penstock.tokens", "kind", self._tokens, "Tokens of turns: prompt, of these cached, and output"),
        ):
            meter.create_observable_counter(name, [_counted(counts, label)], description=description)
        self._hold = meter.create_histogram(
            "penstock.hold",
            unit="s",
            description="Time that a program waited for a slot",
            explicit_bucket_boundaries_advisory=_LONG_S,
        )
        self._launch = meter.create_histogram(
            "penstock.launch_delay",
            unit="s",
            description="Time from a turn's arrival at the engine to its first scheduled prefill",
            explicit_bucket_boundaries_advisory=_LONG_S,
        )
        self._asked: dict[str, int] = {}  # by turn without a first token yet: when it was first heard of
        self._ttft = meter.create_histogram(
            "penstock.ttft",
            unit="s",
            description="Time from a turn's arrival, at the gate where it was held, to its first token",
            explicit_bucket_boundaries_advisory=_LONG_S,
        )
        self._tool = meter.create_histogram(
            "penstock.tool.duration",
            unit="s",
            description="Duration of tool calls",
            explicit_bucket_boundaries_advisory=_LONG_S,
        )
        self._kinds: dict[type[ev.Event], Callable[[Any, int], None]] = {
            ev.TurnQueued: self._turn_asked,
            ev.TurnSubmitted: self._turn_asked,
            ev.TurnAbandoned: self._turn_gone,
            ev.FirstToken: self._first_token,
            ev.TurnEnded: self._turn_ended,
            ev.ToolEnded: lambda event, _: self._tool.record(event.duration_ns / NANOSECONDS_PER_SECOND),
        }

    def event(self, event: ev.Event, now_ns: int) -> None:
        """Count it."""
        if (count := self._kinds.get(type(event))) is not None:
            count(event, now_ns)

    def tick(self, now_ns: int) -> None:
        """Nothing."""

    def config(self, text: str, now_ns: int) -> None:
        """Nothing: the version is a state."""

    def command(self, command: Command, now_ns: int) -> None:
        """Count it; of an admission also how long it was waited for."""
        self._commands[snake_case(type(command))] += 1
        if isinstance(command, Admit):
            # Who is let in stands in front: the search is short.
            named = (each for each in self._controller().considered if each.program_id == command.program_id)
            if (waited := next(named, None)) is not None:
                self._hold.record((now_ns - waited.queued_at_ns) / NANOSECONDS_PER_SECOND)

    def _turn_asked(self, event: ev.TurnQueued | ev.TurnSubmitted, now_ns: int) -> None:
        self._asked.setdefault(event.turn_id, now_ns)
        if len(self._asked) > _MOST_ASKED:
            del self._asked[next(iter(self._asked))]

    def _turn_gone(self, event: ev.TurnAbandoned, now_ns: int) -> None:
        self._asked.pop(event.turn_id, None)

    def _first_token(self, event: ev.FirstToken, now_ns: int) -> None:
        if (asked_ns := self._asked.pop(event.turn_id, None)) is not None:
            self._ttft.record((now_ns - asked_ns) / NANOSECONDS_PER_SECOND)
        self._launch.record(event.launch_delay_ns / NANOSECONDS_PER_SECOND)

    def _turn_ended(self, event: ev.TurnEnded, now_ns: int) -> None:
        self._asked.pop(event.turn_id, None)
        self._turns["true" if event.ok else "false"] += 1
        tokens = self._tokens
        tokens["prompt"] += event.prompt_tokens
        tokens["cached"] += event.cached_tokens
        tokens["output"] += event.output_tokens
        self._of_engines.turn_ended(event)


def _counted(counts: Counter[str], label: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, {label: name}) for name, value in counts.items()]

    return observe


def _callback(state: State, look: Look) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(float(value), attributes) for value, attributes in state.read(look.status(state.name))]

    return observe
