"""What a node measures, as OpenTelemetry instruments: Prometheus reads them, OTLP sends them.

What each of its engines measures is in ``engine_metrics``.
States are read when somebody looks; what happens is counted as it happens. No instrument has a program's name:
there would be as many series as programs.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from anyio.lowlevel import checkpoint
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from controlplane.core.model.commands import Admit, Command
from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.core.scheduling.controller import Controller
from controlplane.daemon.observe.engine_metrics import EngineTokens
from controlplane.daemon.observe.instruments import STATES, make
from controlplane.daemon.observe.journal import History, ToolCall, Turn, View
from controlplane.daemon.status.engines import EngineRow
from controlplane.daemon.status.status import Status
from controlplane.wire.names import snake_case

_AT_ONCE = 64  # engines that are looked at in one go: well below a millisecond
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
        status, rows = self._status(), list[EngineRow]()
        for number, row in enumerate(self._engines(), 1):
            rows.append(row)
            if not number % _AT_ONCE:
                await checkpoint()
        self._taken = _Taken(status, rows)

    def status(self, reader: str) -> Status:
        return self._for(reader).status

    def engines(self, reader: str) -> Sequence[EngineRow]:
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


class Metrics(View):
    """The instruments of one daemon, of engines' ``tokens`` too."""

    def __init__(
        self,
        meter: Meter,
        look: Look,
        controller: Callable[[], Controller],
        tokens: EngineTokens,
        spans: Mapping[str, int] | None = None,
    ) -> None:
        self._controller = controller
        self._of_engines = tokens
        make(meter, STATES, look.status)
        # A counter of the SDK takes microseconds a time, which is too much for every event: these are read.
        self._commands: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._hold_s: defaultdict[str, float] = defaultdict(float)
        for name, unit, label, counts, description in (
            ("commands", "", "kind", self._commands, "Commands sent, by kind"),
            ("turns", "", "ok", self._turns, "Turns that ended, by success"),
            ("tokens", "", "kind", self._tokens, "Tokens of turns: prompt, of these cached, and output"),
            ("hold_time", "s", "reason", self._hold_s, "Time that programs waited for a slot, by what bound"),
            ("otlp.tool_spans", "", "outcome", spans or {}, "Tool calls that came over OTLP, by what they became"),
        ):
            by_label = [_counted(counts, label)]
            meter.create_observable_counter(f"penstock.{name}", by_label, unit=unit, description=description)
        self._hold, self._launch, self._ttft, self._tool = (
            meter.create_histogram(
                f"penstock.{name}", unit="s", description=description, explicit_bucket_boundaries_advisory=_LONG_S
            )
            for name, description in (
                ("hold", "Time that a program waited for a slot"),
                ("launch_delay", "Time from a turn's arrival at the engine to its first scheduled prefill"),
                ("ttft", "Time from a turn's arrival, at the gate where it was held, to its first token"),
                ("tool.duration", "Duration of tool calls"),
            )
        )

    def command(self, command: Command, history: History | None, now_ns: int) -> None:
        self._commands[snake_case(type(command))] += 1
        if isinstance(command, Admit):
            hold = self._controller().holds.ended.get(command.program_id)
            if hold is not None:
                self._hold.record(sum(ns for _, ns in hold.reasons) / NANOSECONDS_PER_SECOND)
                for binding, ns in hold.reasons:
                    self._hold_s[binding.reason.value] += ns / NANOSECONDS_PER_SECOND

    def first_token(self, history: History, turn: Turn, now_ns: int) -> None:
        if (asked_ns := turn.queued_ns or turn.submitted_ns) and not turn.ended_ns:
            self._ttft.record((now_ns - asked_ns) / NANOSECONDS_PER_SECOND)
        self._launch.record(turn.launch_delay_ns / NANOSECONDS_PER_SECOND)

    def turn_ended(self, history: History, turn: Turn, now_ns: int, *, is_known: bool) -> None:
        self._turns["false" if turn.end else "true"] += 1
        for kind in ("prompt", "cached", "output"):
            self._tokens[kind] += getattr(turn, f"{kind}_tokens")
        self._of_engines.turn_ended(turn)

    def tool_ended(self, history: History, call: ToolCall, now_ns: int) -> None:
        self._tool.record(call.duration_ns / NANOSECONDS_PER_SECOND)


def _counted(counts: Mapping[str, float], label: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, {label: name}) for name, value in counts.items()]

    return observe
