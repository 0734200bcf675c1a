"""Makes tool events of spans, and says which spans it could make none of.

A span comes once its call is over, so its event tells of the whole call: the daemon learns how long the tool took,
and never believes that it runs (``ToolEnded.told_after_ns``).
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf

from anyio import sleep
from anyio.lowlevel import checkpoint
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from controlplane import clocks
from controlplane.core.model.events import Event, ToolEnded
from controlplane.core.model.types import seconds
from controlplane.daemon.otlp.programs import SpanPrograms
from controlplane.daemon.otlp.spans import ToolSpan, asks_a_model, ids_of, texts, tool_span
from controlplane.daemon.process.logs import logger

OUTCOMES = ("taken", "delegated", "repeated", "unmatched", "malformed")
_UNMATCHED = "no program that has turns here has its conversation, its call id or its trace"
_AGAIN_S = 1.0  # a tool may be faster than the word of the turn that called it
_AT_ONCE = 64  # spans between two pauses
_MOST_SPANS = 65_536  # that are remembered: a client sends again what was not answered in time
_LONGEST_AGO_NS = seconds(3600)
_SPELL_S = 30.0  # between two warnings


class SpanReceiver:
    """Takes requests of OTLP's trace service. ``counts``: tool calls by what became of them, as ``OUTCOMES``."""

    def __init__(self, programs: SpanPrograms, send: Callable[[Iterable[Event]], None]) -> None:
        self.counts = Counter(dict.fromkeys(OUTCOMES, 0))
        self._programs, self._send = programs, send
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._above_models: OrderedDict[str, None] = OrderedDict()  # spans that model calls or agents ran within
        self._warned_s = -inf
        self._log = logger("otlp")

    async def take(self, request: ExportTraceServiceRequest) -> ExportTraceServiceResponse:
        """Tell of its tool calls; the answer says which it could not."""
        problems: list[str] = []
        calls: list[ToolSpan] = []
        for number, (span, attributes) in enumerate(_spans(request)):
            if not number % _AT_ONCE:
                await checkpoint()
            call = self._read(span, attributes)
            if call is not None and call.fault:
                self._refuse("malformed", call, call.fault, problems)
            elif call is not None:
                calls.append(call)
        if calls := await self._tell(calls):
            await sleep(_AGAIN_S)
        for call in await self._tell(calls):
            self._refuse("unmatched", call, _UNMATCHED, problems)
        response = ExportTraceServiceResponse()
        if problems:
            self._warn(problems)
            response.partial_success.rejected_spans = len(problems)
            response.partial_success.error_message = problems[0]
        return response

    def _read(self, span: Span, attributes: dict[str, str]) -> ToolSpan | None:
        """The tool call that is to be told of. What is within a span ends before it, and so comes first."""
        trace, own, above = ids_of(span)
        key = trace + own
        within = key in self._above_models
        if trace and above and (within or asks_a_model(attributes)):
            _note(self._above_models, trace + above)
        call = tool_span(span, attributes)
        if call is None or not (trace and own):
            return call
        if key in self._seen:
            self.counts["repeated"] += 1
            return None
        _note(self._seen, key)
        if within:  # a sub-agent's run: its turns are no time of a tool
            self.counts["delegated"] += 1
            return None
        return call

    async def _tell(self, calls: Sequence[ToolSpan]) -> list[ToolSpan]:
        """Tell of those whose program is known; the others."""
        left = list[ToolSpan]()
        for start in range(0, len(calls), _AT_ONCE):
            left += self._tell_some(calls[start : start + _AT_ONCE])
            await checkpoint()
        return left

    def _tell_some(self, calls: Sequence[ToolSpan]) -> list[ToolSpan]:
        events, left = list[Event](), list[ToolSpan]()
        now_ns = time.time_ns()
        for call in calls:
            program_id, tool = self._programs.find(call)
            if not program_id:
                left.append(call)
                continue
            self.counts["taken"] += 1
            events.append(
                ToolEnded(
                    program_id=program_id,
                    call_id=call.call_id or call.span_id,
                    tool=tool,
                    duration_ns=call.ended_ns - call.began_ns,
                    ok=call.ok,
                    told_after_ns=min(_LONGEST_AGO_NS, max(1, now_ns - call.ended_ns)),
                )
            )
        self._send(events)
        return left

    def _refuse(self, outcome: str, call: ToolSpan, why: str, problems: list[str]) -> None:
        self.counts[outcome] += 1
        of = call.conversations[-1] if call.conversations else "no conversation"
        problems.append(f"{call.tool} (of {of}, trace {call.trace_id}): {why}")

    def _warn(self, problems: Sequence[str]) -> None:
        if (now_s := clocks.awake_s()) - self._warned_s >= _SPELL_S:
            self._warned_s = now_s
            counts = {name: self.counts[name] for name in ("unmatched", "malformed", "taken")}
            self._log.warning("tool calls left out", first=problems[0], **counts)


def _spans(request: ExportTraceServiceRequest) -> Iterator[tuple[Span, dict[str, str]]]:
    """Each with its own attributes and those of its process."""
    for sent in request.resource_spans:
        of_process = texts(sent.resource.attributes)
        for scope in sent.scope_spans:
            for span in scope.spans:
                yield span, of_process | texts(span.attributes)


def _note(table: OrderedDict[str, None], key: str) -> None:
    table[key] = None
    table.move_to_end(key)
    if len(table) > _MOST_SPANS:
        table.popitem(last=False)
