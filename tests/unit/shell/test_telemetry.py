"""Metrics and traces, read in memory."""

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.core_driver import Driver, fixed

from controlplane.config import Config, Resolved, Source
from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.types import seconds
from controlplane.shell.metrics import STATES, Metrics
from controlplane.shell.pump import Pump
from controlplane.shell.reload import Reloader
from controlplane.shell.status import Status, describe
from controlplane.shell.traces import Traces


class Measured:
    """A controller of one slot, and what is measured of it."""

    def __init__(self) -> None:
        self.driver = Driver(fixed(1))
        self.pump = Pump(self.driver.controller)
        self.reloader = Reloader(Source(), Resolved(config=Config(), origins={}), lambda config: None)
        self.reader = InMemoryMetricReader()
        meter = MeterProvider(metric_readers=[self.reader]).get_meter("penstock")
        self.metrics = Metrics(meter, self.status, lambda: self.driver.controller)

    def status(self) -> Status:
        return describe(
            self.pump, self.reloader, boot_id="b", position=1, bus_connected=True, now_ns=self.driver.now_ns
        )

    def tick(self, after_s: float = 0.0) -> None:
        for command in self.driver.tick(after_s):
            self.metrics.command(command, self.driver.now_ns)

    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        found = [m for resource in data.resource_metrics for scope in resource.scope_metrics for m in scope.metrics]
        return {metric.name: list(metric.data.data_points) for metric in found}

    def values(self, name: str) -> dict[str, float]:
        return {",".join(map(str, p.attributes.values())): p.value for p in self.points()[name]}


def test_every_state_is_read() -> None:
    measured = Measured()
    measured.driver.pool(total=1000, free=400)
    measured.driver.cpus(4)
    measured.driver.ask("a")
    measured.driver.ask("b")
    measured.driver.ledger.estimates.lives.ended("", 3, expected_tokens=1000, actual_tokens=1600)
    measured.tick(0.5)
    assert {state.name for state in STATES} <= set(measured.points())
    assert measured.values("penstock.programs") == {"active": 1, "waiting": 1}
    assert measured.values("penstock.kv.blocks")["free"] == 400
    assert measured.values("penstock.window.limit") == {"": 1}
    assert measured.values("penstock.events")["applied"] == 4


def test_what_happens_is_counted() -> None:
    measured = Measured()
    driver = measured.driver
    driver.ask("a")
    driver.wait(7)
    measured.tick()
    for event in (
        driver.engine(ev.FirstToken, program_id="a", turn_id="a.1", launch_delay_ns=seconds(0.5)),
        driver.engine(
            ev.TurnEnded, program_id="a", turn_id="a.1", prompt_tokens=100, cached_tokens=80, output_tokens=9
        ),
        driver.tools(ev.ToolEnded, program_id="a", call_id="1", tool="bash", duration_ns=seconds(3)),
    ):
        measured.metrics.event(event, driver.now_ns)
    points = measured.points()
    assert [(p.count, p.sum) for p in points["penstock.hold"]] == [(1, 7.0)]
    assert [(p.count, p.sum) for p in points["penstock.launch_delay"]] == [(1, 0.5)]
    assert [(p.count, p.sum) for p in points["penstock.tool.duration"]] == [(1, 3.0)]
    assert measured.values("penstock.tokens") == {"prompt": 100, "cached": 80, "output": 9}
    assert measured.values("penstock.commands")["admit"] == 1
    assert measured.values("penstock.turns") == {"true": 1}


# Traces


class Traced:
    """Spans that ended, and a clock that goes a second with each event."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.now_ns = 0
        self.traces = Traces(provider.get_tracer("penstock"), "gpu7", wall_ns=lambda: self.now_ns)

    def tell(self, *events: ev.Event) -> None:
        for event in events:
            self.now_ns += seconds(1)
            self.traces.event(event, 0)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


def test_one_trace_across_the_turns_and_tools_of_a_program() -> None:
    traced = Traced()
    name = {"program_id": "p"}
    traced.tell(
        ev.TurnQueued(**name, turn_id="1"),
        ev.TurnQueued(**name, turn_id="1"),  # asked again while it is held
        ev.TurnSubmitted(**name, turn_id="1", projected_blocks=1),
        ev.FirstToken(**name, turn_id="1", prompt_tokens=100, cached_tokens=60),
        ev.TurnEnded(**name, turn_id="1", output_tokens=7),
        ev.ToolEnqueued(**name, call_id="c", tool="bash"),
        ev.ToolStarted(**name, call_id="c", tool="bash"),
        ev.ToolEnded(**name, call_id="c", tool="bash", duration_ns=seconds(0.25), ok=False),
    )
    traced.traces.command(cmd.Retain(program_id="p", ttl_ns=1, reason="soon back"), 0)
    traced.tell(ev.ProgramEnded(**name))
    program, turn, tool = traced.spans["program"], traced.spans["turn"], traced.spans["tool bash"]
    assert program.context is not None
    assert turn.parent is not None
    assert tool.parent is not None
    assert program.context.trace_id == turn.parent.trace_id == tool.parent.trace_id
    assert turn.parent.span_id == tool.parent.span_id == program.context.span_id
    assert (turn.start_time, turn.end_time) == (seconds(1), seconds(5))
    assert [event.name for event in turn.events] == ["held", "submitted", "first token"]
    assert turn.attributes is not None
    assert turn.attributes["penstock.cached_tokens"] == 60
    assert turn.attributes["gen_ai.usage.output_tokens"] == 7
    assert (tool.start_time, tool.end_time) == (seconds(6), seconds(7.25))
    assert not tool.status.is_ok
    assert [(event.name, dict(event.attributes or {})) for event in program.events] == [
        ("Retain", {"reason": "soon back"})
    ]


def test_a_child_is_in_its_parents_trace() -> None:
    traced = Traced()
    traced.tell(
        ev.ProgramArrived(program_id="root"),
        ev.ProgramArrived(program_id="child", parent_id="root"),
        ev.ProgramEnded(program_id="child"),
        ev.ProgramEnded(program_id="root"),
    )
    child, root = traced.exporter.get_finished_spans()
    assert child.parent is not None
    assert root.context is not None
    assert child.parent.span_id == root.context.span_id


def test_what_is_open_at_the_end_is_closed() -> None:
    traced = Traced()
    traced.tell(
        ev.TurnSubmitted(program_id="p", turn_id="1", projected_blocks=1),
        ev.ToolStarted(program_id="p", call_id="c", tool="bash"),
        ev.TurnEnded(program_id="p", turn_id="unknown"),
        ev.ToolEnded(program_id="p", call_id="unknown", tool="bash", duration_ns=1),
        ev.TurnAbandoned(program_id="p", turn_id="unknown"),
    )
    assert traced.spans == {}
    traced.traces.close()
    assert set(traced.spans) == {"program", "turn", "tool bash"}


def test_an_abandoned_turn_is_an_error() -> None:
    traced = Traced()
    traced.tell(
        ev.TurnQueued(program_id="p", turn_id="1"),
        ev.TurnAbandoned(program_id="p", turn_id="1", reason="the client left while held"),
    )
    assert traced.spans["turn"].status.description == "the client left while held"
