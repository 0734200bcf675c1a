"""What a node measures, as OpenTelemetry instruments: Prometheus reads them, OTLP sends them.

States are read when somebody looks; what happens is counted as it happens. No instrument has a program's name:
there would be as many series as programs.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from controlplane.core import events as ev
from controlplane.core.commands import Admit, Command
from controlplane.core.controller import Controller
from controlplane.core.types import NANOSECONDS_PER_SECOND
from controlplane.shell.status import Status
from controlplane.wire.names import snake_case

Values = Iterable[tuple[float, dict[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """An instrument that is read from the status. ``grows``: a counter, else a gauge."""

    name: str
    unit: str
    description: str
    read: Callable[[Status], Values]
    grows: bool = False


def _one(value: float) -> Values:
    return [(value, {})]


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


STATES = (
    State(
        name="penstock.window.limit",
        unit="{program}",
        description="Root programs that may be active; 0: no limit",
        read=lambda s: _one(s.window.limit),
    ),
    State(
        name="penstock.window.raw",
        unit="{program}",
        description="The admission window before its caps",
        read=lambda s: _one(s.window.window),
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
        read=lambda s: _one(s.programs),
    ),
    State(name="penstock.kv.blocks", unit="{block}", description="Blocks of the KV pool by state", read=_kv),
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
        read=lambda s: _one(s.pressure.kv_use_ratio),
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
        read=lambda s: _one(s.pressure.tool_slowdown_ratio),
    ),
    State(
        name="penstock.host.cpus",
        unit="{cpu}",
        description="CPUs that tools may use",
        read=lambda s: _one(s.pressure.cpus),
    ),
    State(
        name="penstock.host.cpu_use_ratio",
        unit="",
        description="Share of the host's CPUs in use",
        read=lambda s: _one(s.pressure.cpu_use_ratio),
    ),
    State(
        name="penstock.host.cpu_stall_ratio",
        unit="",
        description="Share of time for which some task waited for a CPU",
        read=lambda s: _one(s.pressure.cpu_stall_ratio),
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
        read=lambda s: _one(s.orders.draining),
    ),
    State(
        name="penstock.held_by_operator",
        unit="{program}",
        description="Programs that an operator holds",
        read=lambda s: _one(len(s.orders.held)),
    ),
    State(
        name="penstock.bus.connected",
        unit="",
        description="1 while the daemon's own messages come back over its bus",
        read=lambda s: _one(s.bus_connected),
    ),
    State(
        name="penstock.config.version",
        unit="",
        description="Version of the configuration in force, 1 when the daemon starts",
        read=lambda s: _one(s.config.version),
    ),
    State(
        name="penstock.config.refusals",
        unit="",
        description="Configurations that were refused",
        read=lambda s: _one(s.config.refusals),
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
_LONG_S = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)


class Metrics:
    """The instruments of one daemon; a ``Recorder`` of what happens."""

    def __init__(self, meter: Meter, status: Callable[[], Status], controller: Callable[[], Controller]) -> None:
        self._controller = controller
        for state in STATES:
            make: Any = meter.create_observable_counter if state.grows else meter.create_observable_gauge
            make(state.name, [_callback(state, status)], unit=state.unit, description=state.description)
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
        self._tool = meter.create_histogram(
            "penstock.tool.duration",
            unit="s",
            description="Duration of tool calls",
            explicit_bucket_boundaries_advisory=_LONG_S,
        )
        self._kinds: dict[type[ev.Event], Callable[[Any], None]] = {
            ev.FirstToken: self._first_token,
            ev.TurnEnded: self._turn_ended,
            ev.ToolEnded: lambda event: self._tool.record(event.duration_ns / NANOSECONDS_PER_SECOND),
        }

    def event(self, event: ev.Event, now_ns: int) -> None:
        """Count it."""
        if (count := self._kinds.get(type(event))) is not None:
            count(event)

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

    def _first_token(self, event: ev.FirstToken) -> None:
        self._launch.record(event.launch_delay_ns / NANOSECONDS_PER_SECOND)

    def _turn_ended(self, event: ev.TurnEnded) -> None:
        self._turns["true" if event.ok else "false"] += 1
        tokens = self._tokens
        tokens["prompt"] += event.prompt_tokens
        tokens["cached"] += event.cached_tokens
        tokens["output"] += event.output_tokens


def _counted(counts: Counter[str], label: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, {label: name}) for name, value in counts.items()]

    return observe


def _callback(state: State, status: Callable[[], Status]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(float(value), attributes) for value, attributes in state.read(status())]

    return observe
