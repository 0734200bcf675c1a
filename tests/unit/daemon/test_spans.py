"""What becomes of a span: whose tool call it is, what is told of it, and what is said of those left out."""

import time
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from support.core_driver import Driver, Publisher

from controlplane.core.model import events as ev
from controlplane.daemon.otlp import receiver
from controlplane.daemon.otlp.programs import SpanPrograms
from controlplane.daemon.otlp.receiver import SpanReceiver
from controlplane.daemon.otlp.spans import CONVENTIONS

TRACE, OTHER = "4b" * 16, "5c" * 16
SECOND_NS = 1_000_000_000
GENAI = CONVENTIONS[0]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "_AGAIN_S", 0.0)


def pairs(texts: dict[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(string_value=text)) for key, text in texts.items() if key]


def span(attributes: dict[str, str], trace: str = TRACE, number: int = 1, parent: int = 0, **more: Any) -> Span:
    """One of two seconds that has just ended."""
    now_ns = time.time_ns()
    times = {"start_time_unix_nano": now_ns - 2 * SECOND_NS, "end_time_unix_nano": now_ns} | more
    above = parent.to_bytes(8, "big") if parent else b""
    return Span(
        trace_id=bytes.fromhex(trace),
        span_id=number.to_bytes(8, "big"),
        parent_span_id=above,
        name="execute_tool look",
        attributes=pairs(attributes),
        **times,
    )


def request(*spans: Span, of_process: dict[str, str] | None = None) -> ExportTraceServiceRequest:
    resource = Resource(attributes=pairs(of_process or {}))
    return ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(resource=resource, scope_spans=[ScopeSpans(spans=list(spans))])]
    )


SAID = ("program_id", "call_id", "tool", "duration_ns", "ok", "told_after_ns")
TOOL = {GENAI.kind: GENAI.tool, GENAI.name: "look"}


class Scene:
    """A ledger with a root and its sub-agent, and another root; each has had a turn that called a tool."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.told: list[Any] = []
        ledger = self.driver.controller.ledger
        self.programs = SpanPrograms(lambda: ledger)
        self.receiver = SpanReceiver(self.programs, self.told.extend)
        for name, parent, trace in (("root", "", TRACE), ("root/sub", "root", TRACE), ("other", "", OTHER)):
            gate, turn = self.driver.gate, {"program_id": name, "turn_id": f"of {name}"}
            arrived = gate(ev.ProgramArrived, program_id=name, parent_id=parent)
            queued = gate(ev.TurnQueued, **turn, trace=f"00-{trace}-{'0a' * 8}-01")
            calls = (
                ev.CalledTool(call_id=f"call of {name}", tool="pytest"),
                ev.CalledTool(call_id="call_1", tool="ls"),
            )
            for event in (arrived, queued, gate(ev.ReplyRead, **turn, tool="pytest", tool_calls=2, calls=calls)):
                self.driver.controller.receive(event, 1)
                self.programs.event(event, 1)


@pytest.mark.parametrize(
    ("attributes", "trace", "found"),
    [
        ({GENAI.conversation: "other"}, TRACE, ("other", "look")),
        ({GENAI.conversation: "root"}, TRACE, ("root", "look")),
        ({GENAI.conversation: "root", GENAI.agent: "sub"}, TRACE, ("root/sub", "look")),
        ({GENAI.conversation: "root", GENAI.call_id: "call of root/sub"}, TRACE, ("root/sub", "pytest")),
        ({GENAI.conversation: "other", GENAI.call_id: "call of root"}, TRACE, ("other", "look")),
        ({GENAI.conversation: "unknown", GENAI.call_id: "call of other"}, "66" * 16, ("other", "pytest")),
        ({GENAI.call_id: "call_1"}, OTHER, ("other", "look")),  # which several have
        ({}, OTHER, ("other", "look")),
        ({}, TRACE, ("root", "look")),  # the family's
        (
            {GENAI.conversation: "other", GENAI.name: "bash", GENAI.arguments: '{"command": "git log"}'},
            TRACE,
            ("other", "git"),
        ),
        ({GENAI.conversation: "unknown"}, "66" * 16, None),
        ({GENAI.call_id: "call_1"}, "66" * 16, None),
    ],
)
async def test_whose_it_is(attributes: dict[str, str], trace: str, found: tuple[str, str] | None) -> None:
    scene = Scene()
    answer = await scene.receiver.take(request(span(TOOL | attributes, trace)))
    assert [(event.program_id, event.tool) for event in scene.told] == ([found] if found else [])
    assert answer.partial_success.rejected_spans == (0 if found else 1)
    assert bool(answer.partial_success.error_message) is not bool(found)
    assert scene.receiver.counts["taken" if found else "unmatched"] == 1


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda each: each.source)
async def test_each_convention_is_read(convention: Any) -> None:
    scene = Scene()
    said = {convention.kind: convention.tool, convention.conversation: "root", convention.name: "look"}
    await scene.receiver.take(request(span(said | {convention.call_id: "call of root"})))
    (event,) = scene.told
    assert (event.program_id, event.tool) == ("root", "pytest" if convention.call_id else "look")
    assert event.duration_ns == 2 * SECOND_NS


async def test_a_process_names_its_program_once_for_all_spans() -> None:
    scene = Scene()
    await scene.receiver.take(request(span(TOOL, "66" * 16), of_process={GENAI.conversation: "other"}))
    assert [event.program_id for event in scene.told] == ["other"]


async def test_what_is_left_out() -> None:
    """A span that is sent again, one that no clock can have made, and a tool whose time is a sub-agent's."""
    scene = Scene()
    twice, broken = span(TOOL, number=1), span(TOOL, number=2, end_time_unix_nano=1)
    chat, agent = span({GENAI.kind: "chat"}, number=3, parent=4), span({"of": "nobody"}, number=4, parent=5)
    answer = await scene.receiver.take(request(twice, broken, chat, agent, span(TOOL, number=5)))
    await scene.receiver.take(request(twice))
    counts = {"taken": 1, "malformed": 1, "delegated": 1, "repeated": 1, "unmatched": 0}
    assert dict(scene.receiver.counts) == counts
    assert answer.partial_success.rejected_spans == 1


@pytest.mark.parametrize("trace", [b"", b"4b", b"4b" * 1_000_000])
@pytest.mark.parametrize("own", [b"", b"1" * 1_000_000, b"1" * 8])
async def test_of_a_span_whose_ids_are_none_nothing_is_kept(trace: bytes, own: bytes) -> None:
    scene = Scene()
    for attributes in (TOOL | {GENAI.conversation: "root"}, {GENAI.kind: "chat"}):
        sent = span(attributes)
        sent.trace_id, sent.span_id, sent.parent_span_id = trace, own, own
        answer = await scene.receiver.take(request(sent))
    assert (scene.receiver.counts["malformed"], scene.told) == (1, [])
    assert not (scene.receiver._seen or scene.receiver._above_models)
    assert len(answer.partial_success.error_message) < 1000


async def test_attributes_that_nobody_asked_for_cost_nothing_of_each_span() -> None:
    scene, begun_s = Scene(), time.process_time()
    of_process = {f"key {number}": "x" for number in range(100_000)}
    spans = [span(TOOL | {GENAI.conversation: "root"}, number=number) for number in range(1, 4_000)]
    await scene.receiver.take(request(*spans, of_process=of_process))
    assert len(scene.told) == len(spans)
    assert time.process_time() - begun_s < 5, "it was longer, and grew with both"


async def test_the_daemon_learns_the_duration_and_believes_no_tool_to_run() -> None:
    scene = Scene()
    await scene.receiver.take(request(span(TOOL | {GENAI.conversation: "other"})))
    controller = scene.driver.controller
    before = controller.ledger.programs.by_name["other"].open_tools
    (event,) = scene.told
    of_spans, adapter = Publisher("node/tool/spans"), scene.driver.tools
    told = of_spans(ev.ToolEnded, **{name: getattr(event, name) for name in SAID})
    controller.receive(told, 10 * SECOND_NS)
    assert controller.ledger.programs.estimates.tools["look"].all.ascending == [2 * SECOND_NS]
    assert (before, controller.ledger.programs.by_name["other"].open_tools) == (0, 0)
    assert controller.ledger.tools.calls == {}
    begun = adapter(ev.ToolStarted, program_id="other", call_id=event.call_id, tool="look")
    controller.receive(begun, 11 * SECOND_NS)
    assert len(controller.ledger.tools.calls) == 1, "an adapter that tells of a call of that id is believed"
