"""One trace a program: its turns and tool calls as spans below it, with what was waited for and what was cached.

Where the client sent a trace of its own (W3C's ``traceparent``), a turn's span is a child of the client's, and the
program's is in the trace of its first such turn. Two daemons that decide about a program, its fleet's and its
node's, then tell one trace. Of a turn that passes at once the engine tells the client's span, of another its gate.

Times are the daemon's, when it heard of each; a tool's end is its own duration after its start.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from controlplane.core import events as ev
from controlplane.core.commands import Command
from controlplane.core.events import place_of
from controlplane.core.ledger.tools import tool_key

_W3C = TraceContextTextMapPropagator()
_MOST_OPEN = 20_000  # programs, and as many turns and tools; the oldest is closed where there are more


class Traces:
    """Makes the spans of one daemon; a ``Recorder`` of what happens."""

    def __init__(self, tracer: Tracer, node: str, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._tracer, self._node, self._wall_ns = tracer, node, wall_ns
        self._programs: OrderedDict[str, Span] = OrderedDict()
        self._turns: OrderedDict[str, Span] = OrderedDict()
        self._tools: OrderedDict[str, tuple[Span, int]] = OrderedDict()
        self._kinds: dict[type[ev.Event], Callable[[Any, int], None]] = {
            ev.ProgramArrived: self._arrived,
            ev.TurnQueued: self._queued,
            ev.TurnSubmitted: self._submitted,
            ev.FirstToken: self._first_token,
            ev.TurnEnded: self._turn_ended,
            ev.TurnAbandoned: self._abandoned,
            ev.ToolEnqueued: self._tool_asked,
            ev.ToolStarted: self._tool_started,
            ev.ToolEnded: self._tool_ended,
            ev.ProgramEnded: self._ended,
        }

    def event(self, event: ev.Event, now_ns: int) -> None:
        """Begin or end a span, or add to one."""
        if (handle := self._kinds.get(type(event))) is not None:
            handle(event, self._wall_ns())

    def tick(self, now_ns: int) -> None:
        """Nothing."""

    def config(self, text: str, now_ns: int) -> None:
        """Nothing."""

    def command(self, command: Command, now_ns: int) -> None:
        """A decision is an event of its program's span."""
        span = self._programs.get(getattr(command, "program_id", ""))
        if span is not None:
            span.add_event(type(command).__name__, {"reason": command.reason}, timestamp=self._wall_ns())

    def close(self) -> None:
        """End every span."""
        now_ns = self._wall_ns()
        for spans in (self._turns, self._programs):
            for span in spans.values():
                span.end(now_ns)
        for span, _ in self._tools.values():
            span.end(now_ns)

    # Programs

    def _program(self, program_id: str, now_ns: int, parent_id: str = "", trace: str = "") -> Span:
        span = self._programs.get(program_id)
        if span is None:
            parent = self._programs.get(parent_id)
            span = self._tracer.start_span(
                "program",
                context=set_span_in_context(parent) if parent is not None else _client(trace),
                attributes={"penstock.program_id": program_id, "penstock.node": self._node},
                start_time=now_ns,
            )
            self._programs[program_id] = span
            self._bound(self._programs, now_ns)
        return span

    def _arrived(self, event: ev.ProgramArrived, now_ns: int) -> None:
        self._program(event.program_id, now_ns, event.parent_id)

    def _ended(self, event: ev.ProgramEnded, now_ns: int) -> None:
        span = None if event.for_now else self._programs.pop(event.program_id, None)
        if span is not None:
            span.end(now_ns)

    # Turns

    def _turn(self, event: Any, now_ns: int) -> Span:
        span = self._turns.get(event.turn_id)
        if span is None:
            trace = getattr(event, "trace", "")
            above = self._program(event.program_id, now_ns, getattr(event, "parent_id", ""), trace)
            client = _client(trace)
            span = self._tracer.start_span(
                "turn",
                context=client if client is not None else set_span_in_context(above),
                links=[Link(above.get_span_context())] if client is not None else (),
                attributes={"penstock.program_id": event.program_id, "penstock.turn_id": event.turn_id},
                start_time=now_ns,
            )
            self._turns[event.turn_id] = span
            self._bound(self._turns, now_ns)
        return span

    def _queued(self, event: ev.TurnQueued, now_ns: int) -> None:
        if event.turn_id not in self._turns:  # it is asked for again while it is held
            self._turn(event, now_ns).add_event("held", timestamp=now_ns)

    def _submitted(self, event: ev.TurnSubmitted, now_ns: int) -> None:
        span = self._turn(event, now_ns)
        span.add_event("submitted", timestamp=now_ns)
        span.set_attribute("penstock.engine", place_of(event.publisher))

    def _first_token(self, event: ev.FirstToken, now_ns: int) -> None:
        span = self._turn(event, now_ns)
        span.add_event("first token", timestamp=now_ns)
        span.set_attributes(
            {
                "gen_ai.usage.input_tokens": event.prompt_tokens,
                "penstock.cached_tokens": event.cached_tokens,
                "penstock.loaded_tokens": event.loaded_tokens,
                "penstock.launch_delay_s": event.launch_delay_ns / 1e9,
            }
        )

    def _turn_ended(self, event: ev.TurnEnded, now_ns: int) -> None:
        span = self._turns.pop(event.turn_id, None)
        if span is not None:
            span.set_attribute("gen_ai.usage.output_tokens", event.output_tokens)
            if not event.ok:
                span.set_status(Status(StatusCode.ERROR, "the turn was aborted"))
            span.end(now_ns)

    def _abandoned(self, event: ev.TurnAbandoned, now_ns: int) -> None:
        span = self._turns.pop(event.turn_id, None)
        if span is not None:
            span.set_status(Status(StatusCode.ERROR, event.reason))
            span.end(now_ns)

    # Tools

    def _tool(self, event: Any, now_ns: int) -> Span:
        key = tool_key(event.program_id, event.call_id)
        known = self._tools.get(key)
        if known is None:
            span = self._tracer.start_span(
                f"tool {event.tool}",
                context=set_span_in_context(self._program(event.program_id, now_ns)),
                attributes={"penstock.program_id": event.program_id, "gen_ai.tool.name": event.tool},
                start_time=now_ns,
            )
            known = self._tools[key] = (span, now_ns)
            while len(self._tools) > _MOST_OPEN:
                self._tools.popitem(last=False)[1][0].end(now_ns)
        return known[0]

    def _tool_asked(self, event: ev.ToolEnqueued, now_ns: int) -> None:
        self._tool(event, now_ns)

    def _tool_started(self, event: ev.ToolStarted, now_ns: int) -> None:
        span = self._tool(event, now_ns)
        span.add_event("started", timestamp=now_ns)
        self._tools[tool_key(event.program_id, event.call_id)] = (span, now_ns)

    def _tool_ended(self, event: ev.ToolEnded, now_ns: int) -> None:
        known = self._tools.pop(tool_key(event.program_id, event.call_id), None)
        if known is None:
            return
        span, started_ns = known
        if not event.ok:
            span.set_status(Status(StatusCode.ERROR, "the tool failed"))
        span.end(started_ns + event.duration_ns if event.duration_ns else now_ns)

    def _bound(self, spans: "OrderedDict[str, Span]", now_ns: int) -> None:
        while len(spans) > _MOST_OPEN:
            spans.popitem(last=False)[1].end(now_ns)


def _client(trace: str) -> Context | None:
    """The context of the client's span; None where it sent none."""
    return _W3C.extract({"traceparent": trace}) if trace else None
