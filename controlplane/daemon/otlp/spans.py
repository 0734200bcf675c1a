"""What a span says of a tool call, in the words of those who instrument agents.

To add a convention: one entry in ``CONVENTIONS``, made from spans that a real agent sent. Of a call's arguments
nothing is kept but the name of the program that a shell runs.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from controlplane.core.model.text import sanitize
from controlplane.tool_calls.calls import called_name
from controlplane.wire.validation import COUNT_BITS

_TRACE_BYTES, _SPAN_BYTES = 16, 8
_EXECUTES = "execute_tool "  # how the name of such a span begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """The names of attributes. ``kind`` says what a span is: a ``tool``'s call, or one of ``models`` or agents."""

    source: str
    kind: str
    tool: str
    models: frozenset[str]
    conversation: str
    name: str = ""  # of the tool; empty: the span has its name
    call_id: str = ""
    agent: str = ""
    arguments: str = ""


CONVENTIONS = (
    Convention(
        source="OpenTelemetry's GenAI conventions",
        kind="gen_ai.operation.name",
        tool="execute_tool",
        models=frozenset({"chat", "generate_content", "text_completion", "invoke_agent", "invoke_workflow"}),
        conversation="gen_ai.conversation.id",
        name="gen_ai.tool.name",
        call_id="gen_ai.tool.call.id",
        agent="gen_ai.agent.id",
        arguments="gen_ai.tool.call.arguments",
    ),
    Convention(
        source="OpenInference",
        kind="openinference.span.kind",
        tool="TOOL",
        models=frozenset({"LLM", "AGENT"}),
        conversation="session.id",
        name="tool.name",
    ),
    Convention(
        source="Laminar, which OpenHands has",
        kind="lmnr.span.type",
        tool="TOOL",
        models=frozenset({"LLM"}),
        conversation="lmnr.association.properties.session_id",
        call_id="lmnr.association.properties.metadata.tool_call_id",
    ),
)

_NAMES = frozenset(
    name
    for each in CONVENTIONS
    for field in fields(Convention)
    if isinstance(name := getattr(each, field.name), str)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpan:
    """A tool call that is over. Times are Unix time by its agent's clock; empty names: it does not say."""

    trace_id: str  # in hexadecimal digits, likewise the span's
    span_id: str
    tool: str
    is_shell: bool  # whether ``tool`` is what a shell ran, as its arguments say
    call_id: str
    conversations: tuple[str, ...]  # names of the program, the most exact first
    began_ns: int
    ended_ns: int
    ok: bool

    @property
    def fault(self) -> str:
        """Why it cannot be; empty if it can."""
        if not (self.trace_id and self.span_id):
            return "expected a trace id of 16 bytes and a span id of 8"
        if not 0 < self.began_ns <= self.ended_ns:
            return "it ends before it begins"
        return "it took months" if (self.ended_ns - self.began_ns) >> COUNT_BITS else ""


def texts(attributes: Iterable[KeyValue]) -> dict[str, str]:
    """Those that ``CONVENTIONS`` name and that are texts, by name: a process may have any number of others."""
    return {
        each.key: each.value.string_value for each in attributes if each.key in _NAMES and each.value.string_value
    }


def asks_a_model(attributes: Mapping[str, str]) -> bool:
    """Whether the span is of a model's call or of an agent's run."""
    return any(attributes.get(each.kind) in each.models for each in CONVENTIONS)


def tool_span(span: Span, attributes: Mapping[str, str]) -> ToolSpan | None:
    """The tool call that the span is of; None if it is of something else."""
    found = next((each for each in CONVENTIONS if attributes.get(each.kind) == each.tool), None)
    if found is None:
        return None
    trace_id, span_id, _ = ids_of(span)
    said = attributes.get(found.name, "") or span.name.removeprefix(_EXECUTES) or "unnamed"
    tool = called_name(said, attributes.get(found.arguments, ""))
    conversation, agent = attributes.get(found.conversation, ""), attributes.get(found.agent, "")
    names = (f"{conversation}/{agent}", conversation) if agent else (conversation,)
    return ToolSpan(
        trace_id=trace_id,
        span_id=span_id,
        tool=sanitize(tool),
        is_shell=tool != said,
        call_id=sanitize(attributes.get(found.call_id, "")),
        conversations=tuple(map(sanitize, names)) if conversation else (),
        began_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        ok=span.status.code != Status.STATUS_CODE_ERROR,
    )


def ids_of(span: Span) -> tuple[str, str, str]:
    """Of its trace, its own and of the span that it is within, in hexadecimal digits; empty: it has none."""
    own, above = (_digits(raw, _SPAN_BYTES) for raw in (span.span_id, span.parent_span_id))
    return _digits(span.trace_id, _TRACE_BYTES), own, above


def _digits(raw: bytes, size: int) -> str:
    """OTLP's JSON has ids in hexadecimal digits, which protobuf's JSON takes for base64: of 4 it makes 3 bytes."""
    if len(raw) == size:
        return raw.hex()
    return base64.b64encode(raw).decode().lower() if len(raw) == size * 3 // 2 else ""
