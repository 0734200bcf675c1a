"""One trace a program: its turns and tool calls as spans below it, with what was waited for and what was cached.

Where the client sent a trace of its own (W3C's ``traceparent``), a turn's span is a child of the client's, and the
program's is in the trace of its first such turn. Two daemons that decide about a program, its fleet's and its
node's, then tell one trace. Of a turn that passes at once the engine tells the client's span, of another its gate.

Times are the daemon's, when it heard of each; a tool's end is its own duration after its start.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from controlplane.core.model.commands import Command
from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.daemon.observe.journal import History, Journal, ToolCall, Turn, View

_W3C = TraceContextTextMapPropagator()
_MOST_OPEN = 20_000  # programs; the oldest is closed where there are more


class Traces(View):
    """Makes a turn's or a call's span when it has ended, and a program's when it is first needed."""

    def __init__(
        self, tracer: Tracer, node: str, journal: Journal, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._tracer, self._node, self._journal, self._wall_ns = tracer, node, journal, wall_ns
        self._programs: OrderedDict[str, Span] = OrderedDict()

    def command(self, command: Command, history: History | None, now_ns: int) -> None:
        if history is not None and not history.ended_ns:
            span = self._program(history, now_ns)
            span.add_event(type(command).__name__, {"reason": command.reason}, timestamp=self._wall_ns())

    def turn_left(self, history: History, turn: Turn, now_ns: int) -> None:
        self._turn(history, turn, turn.end)

    def turn_ended(self, history: History, turn: Turn, now_ns: int, *, is_known: bool) -> None:
        """Its span has all that was heard of it by now."""
        if not is_known and (turn.queued_ns or turn.submitted_ns):
            self._turn(history, turn, "the turn was aborted" if turn.end else "")

    def tool_ended(self, history: History, call: ToolCall, now_ns: int) -> None:
        self._tool(history, call)

    def program_ended(self, history: History, now_ns: int) -> None:
        self._end(history)

    def close(self) -> None:
        for history in list(self._journal.histories.values()):
            self._end(history)
        for span in self._programs.values():
            span.end(self._wall_ns())

    def _end(self, history: History) -> None:
        for each in history.open.values():
            if isinstance(each, Turn):
                self._turn(history, each, "")
            else:
                self._tool(history, each)
        if (span := self._programs.pop(history.program_id, None)) is not None:
            span.end(self._wall_ns())

    def _program(self, history: History, since_ns: int) -> Span:
        """The program's span, with those above it where they are not there yet."""
        span = self._programs.get(history.program_id)
        if span is not None:
            return span
        missing = {history.program_id: history}
        above = self._journal.histories.get(history.parent_id)
        while above is not None and above.program_id not in self._programs and above.program_id not in missing:
            missing[above.program_id] = above
            above = self._journal.histories.get(above.parent_id)
        *ancestors, own = reversed(missing.values())
        for each in ancestors:
            self._begin(each, since_ns)
        return self._begin(own, since_ns)

    def _begin(self, history: History, since_ns: int) -> Span:
        above = self._programs.get(history.parent_id)
        is_new = history.turns <= 1  # else it went on after its end
        span = self._programs[history.program_id] = self._tracer.start_span(
            "program",
            context=_client(history.trace) if above is None else set_span_in_context(above),
            attributes={"penstock.program_id": history.program_id, "penstock.node": self._node},
            start_time=self._wall(min(history.began_ns, since_ns) if is_new else since_ns),
        )
        while len(self._programs) > _MOST_OPEN:
            self._programs.popitem(last=False)[1].end(self._wall_ns())
        return span

    def _turn(self, history: History, turn: Turn, failure: str) -> None:
        above, client = self._program(history, turn.began_ns), _client(turn.trace)
        span = self._tracer.start_span(
            "turn",
            context=client if client is not None else set_span_in_context(above),
            links=[Link(above.get_span_context())] if client is not None else (),
            attributes={"penstock.program_id": history.program_id, "penstock.turn_id": turn.turn_id},
            start_time=self._wall(turn.began_ns),
        )
        moments = (("held", turn.queued_ns), ("submitted", turn.submitted_ns), ("first token", turn.first_token_ns))
        for name, at_ns in moments:
            if at_ns:
                span.add_event(name, timestamp=self._wall(at_ns))
        if turn.engine:
            span.set_attribute("penstock.engine", turn.engine)
        if turn.first_token_ns:
            span.set_attributes(
                {
                    "gen_ai.usage.input_tokens": turn.prompt_tokens,
                    "gen_ai.usage.output_tokens": turn.output_tokens,
                    "penstock.cached_tokens": turn.cached_tokens,
                    "penstock.loaded_tokens": turn.loaded_tokens,
                    "penstock.launch_delay_s": turn.launch_delay_ns / NANOSECONDS_PER_SECOND,
                }
            )
        if failure:
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(self._wall_ns())

    def _tool(self, history: History, call: ToolCall) -> None:
        span = self._tracer.start_span(
            f"tool {call.tool}",
            context=set_span_in_context(self._program(history, call.began_ns)),
            attributes={"penstock.program_id": history.program_id, "gen_ai.tool.name": call.tool},
            start_time=self._wall(call.began_ns),
        )
        if call.started_ns:
            span.add_event("started", timestamp=self._wall(call.started_ns))
        if not call.ok:
            span.set_status(Status(StatusCode.ERROR, "the tool failed"))
        span.end(self._wall(call.started_ns + call.duration_ns if call.duration_ns else call.ended_ns))

    def _wall(self, at_ns: int) -> int:
        return self._wall_ns() - (self._journal.now_ns - at_ns)


def _client(trace: str) -> Context | None:
    """The context of the client's span; None where it sent none."""
    return _W3C.extract({"traceparent": trace}) if trace else None
