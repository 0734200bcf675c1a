"""Metrics and traces, read in memory."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from anyio import create_task_group
from anyio.lowlevel import checkpoint
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from support.core_driver import Publisher
from support.experiments import MEASURED
from support.journalled import Journalled

from controlplane.config import Config, Resolved, Source
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.tenancy import Tenancy, Tenant
from controlplane.core.model.types import seconds
from controlplane.daemon.observe.engine_metrics import (
    ENGINE_STATES,
    WITH_ALL_ENGINES,
    EngineTokens,
    exposed,
    instruments,
)
from controlplane.daemon.observe.instruments import STATES
from controlplane.daemon.observe.metrics import Look, Metrics
from controlplane.daemon.observe.traces import Traces
from controlplane.daemon.pipeline import DecisionPipeline
from controlplane.daemon.process.reload import Reloader
from controlplane.daemon.process.tasks import Failure
from controlplane.daemon.shadow.estimates import EstimatedChange, ShadowEstimate
from controlplane.daemon.shadow.shadow import Shadow
from controlplane.daemon.status.engines import EngineRow, each_engine
from controlplane.daemon.status.status import Status, describe
from controlplane.transport.listener import ListenerRow

CHANGE = EstimatedChange(name="mean_jct_s", value=-0.2, low=-0.3, high=-0.1, is_bounded=True, replay_error=0.0)


class Measured(Journalled):
    """A controller of one slot, and what is measured of it."""

    def __init__(self, tenancy: Tenancy | None = None) -> None:
        super().__init__(tenancy=tenancy)
        self.pipeline = DecisionPipeline(self.driver.controller)
        self.reloader = Reloader(Source(), Resolved(config=Config(), origins={}), lambda config: None)
        self.shadow = Shadow(lambda: self.driver.controller)
        self.shadow.configure(Config())
        self.reader = InMemoryMetricReader()
        meter = MeterProvider(metric_readers=[self.reader], views=[WITH_ALL_ENGINES]).get_meter("penstock")
        look, self.tokens = Look(self.status, self.engines), EngineTokens()
        self.journal.views.append(Metrics(meter, look, self.journal.controller, self.tokens))
        instruments(meter, look.engines, self.tokens)

    def status(self) -> Status:
        return describe(
            self.pipeline,
            self.reloader,
            boot_id="b",
            stream_sequence=1,
            bus_connected=True,
            now_ns=self.driver.now_ns,
            fence=7,
            shadow=self.shadow.status(self.driver.now_ns, ShadowEstimate(changes=(CHANGE,))),
            experiment=replace(MEASURED, is_stock=True),
            listeners=(ListenerRow(name="page", open=1, most=9, refused=3),),
            failures=(Failure(what="host probe", count=3),),
        )

    def engines(self) -> list[EngineRow]:
        return list(each_engine(self.driver.ledger, (), self.driver.now_ns))

    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        found = [m for resource in data.resource_metrics for scope in resource.scope_metrics for m in scope.metrics]
        return {metric.name: list(metric.data.data_points) for metric in found}

    def values(self, name: str) -> dict[str, float]:
        return {",".join(map(str, p.attributes.values())): p.value for p in self.points()[name]}


def test_every_state_is_read() -> None:
    measured = Measured(Tenancy(named={"ours": Tenant(turns=4)}))
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
    assert measured.values("penstock.waiting.turns") == {"": 1}
    assert measured.values("penstock.tenant.waiting") == {"ours": 0, "default": 1}
    assert measured.values("penstock.waiting.kv_tokens")[""] > 0
    assert measured.values("penstock.events")["applied"] == 4
    assert measured.values("penstock.shadow.deciding") == {"penstock": 0}, "it has heard nothing yet"
    assert measured.values("penstock.shadow.change_ratio") == {"mean_jct_s": -0.2}
    assert measured.values("penstock.gain.change_low_ratio") == {"completion": 0.2}
    assert measured.values("penstock.gain.stock") == {"": 1}
    assert measured.values("penstock.connections.refused") == {"page": 3}


def families(rows: list[EngineRow], tokens: EngineTokens) -> list[Any]:
    return list(text_string_to_metric_families(b"".join(exposed(rows, tokens)).decode()))


def test_prometheus_reads_of_each_engine_what_the_sdk_would_tell() -> None:
    measured = Measured()
    driver, engines = measured.driver, 450  # with five states each, more points than the SDK keeps unasked
    for number in range(engines):
        publisher = Publisher(f"node/engine-{number}/a")
        driver.send(publisher(ev.PoolSampled, total_blocks=1000 + number, free_blocks=4, block_tokens=1))
    ended = ev.TurnEnded(publisher="node/engine-2/b", program_id="p", turn_id="1", prompt_tokens=9, cached_tokens=8)
    measured.journal.event(ended, driver.now_ns)
    read = {
        sample.name: {",".join(each.labels.values()): each.value for each in family.samples}
        for family in families(measured.engines(), measured.tokens)
        for sample in family.samples[:1]
    }
    assert {state.name for state in ENGINE_STATES} <= set(measured.points())
    assert len(read["penstock_engine_kv_blocks"]) == 5 * engines
    assert read["penstock_engine_kv_blocks"]["node/engine-2,total"] == 1002
    assert read["penstock_engine_tokens_total"]["node/engine-2,cached"] == 8
    assert set(read["penstock_engine_up"].values()) == {1}
    assert measured.values("penstock.engines")["serving"] == engines
    assert measured.values("penstock.leading") == {"local": 1}
    for name, values in read.items():
        assert values == measured.values(name.removesuffix("_total").replace("_", ".", 2))


def test_the_name_of_an_engine_is_quoted() -> None:
    first, *_ = families([EngineRow(place='a"b\\c\nd')], EngineTokens())
    assert [sample.labels for sample in first.samples] == [{"engine": 'a"b\\c\nd'}]


async def test_all_instruments_read_one_look() -> None:
    looks: list[int] = []

    def status() -> Any:
        looks.append(1)
        return "status"

    look = Look(status, list)
    assert [look.status("a"), look.status("b"), look.engines("c")] == ["status", "status", []]
    assert len(looks) == 1
    await look.take()
    look.status("a")
    assert len(looks) == 2, "what was taken beforehand is read"
    look.status("a")
    assert len(looks) == 3, "who reads again collects anew"


async def test_a_look_at_very_many_engines_lets_others_go_on() -> None:
    went_on: list[int] = []
    looked = 0

    def rows() -> Iterator[EngineRow]:
        nonlocal looked
        for looked in range(1, 1001):
            yield EngineRow(place=f"engine-{looked}")

    async def others() -> None:
        while looked < 1000:
            went_on.append(looked)
            await checkpoint()

    look = Look(lambda: "status", rows)  # type: ignore[arg-type, return-value]
    async with create_task_group() as tasks:
        tasks.start_soon(others)
        tasks.start_soon(look.take)
    assert max(b - a for a, b in pairwise(went_on)) < 100
    assert len(look.engines("a")) == 1000


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
        measured.journal.event(event, driver.now_ns)
    points = measured.points()
    assert [(p.count, p.sum) for p in points["penstock.hold"]] == [(1, 7.0)]
    assert [(p.count, p.sum) for p in points["penstock.launch_delay"]] == [(1, 0.5)]
    assert [(p.count, p.sum) for p in points["penstock.tool.duration"]] == [(1, 3.0)]
    assert measured.values("penstock.tokens") == {"prompt": 100, "cached": 80, "output": 9}
    assert measured.values("penstock.commands")["admit"] == 1
    assert measured.values("penstock.turns") == {"true": 1}


def test_a_turns_first_token_is_timed_from_its_arrival_at_the_gate() -> None:
    measured = Measured()
    for at_s, event in (
        (0, ev.TurnQueued(program_id="a", turn_id="held")),
        (1, ev.TurnQueued(program_id="a", turn_id="left")),
        (2, ev.TurnAbandoned(program_id="a", turn_id="left")),
        (3, ev.TurnQueued(program_id="a", turn_id="held")),  # asked again
        (4, ev.TurnSubmitted(program_id="a", turn_id="held", projected_blocks=1)),
        (4, ev.TurnSubmitted(program_id="b", turn_id="passed", projected_blocks=1)),
        (5, ev.TurnSubmitted(program_id="b", turn_id="failed", projected_blocks=1)),
        (6, ev.FirstToken(program_id="a", turn_id="held")),
        (6, ev.FirstToken(program_id="b", turn_id="passed")),
        (7, ev.TurnEnded(program_id="b", turn_id="failed", ok=False)),
        (8, ev.FirstToken(program_id="b", turn_id="failed")),
        (8, ev.FirstToken(program_id="a", turn_id="left")),
    ):
        measured.journal.event(event, seconds(1 + at_s))
    assert [(p.count, p.sum) for p in measured.points()["penstock.ttft"]] == [(2, 8.0)]


# Traces


class Traced(Journalled):
    """Spans that ended, and a clock that goes a second with each event."""

    def __init__(self) -> None:
        super().__init__()
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.now_ns = 0
        self.traces = Traces(provider.get_tracer("penstock"), "gpu7", self.journal, wall_ns=lambda: self.now_ns)
        self.journal.views.append(self.traces)

    def tell(self, *events: ev.Event) -> None:
        for event in events:
            self.now_ns += seconds(1)
            self.driver.send(event)
            self.journal.event(event, self.now_ns)

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
    traced.journal.command(cmd.Retain(program_id="p", ttl_ns=1, reason="soon back"), traced.now_ns)
    traced.tell(ev.ProgramEnded(**name))
    program, turn, tool = traced.spans["program"], traced.spans["turn"], traced.spans["tool bash"]
    above = [(each.trace_id, each.span_id) for each in (program.context, turn.parent, tool.parent) if each]
    assert above == above[:1] * 3
    assert (turn.start_time, turn.end_time) == (seconds(1), seconds(5))
    assert [event.name for event in turn.events] == ["held", "submitted", "first token"]
    attributes = dict(turn.attributes or {})
    assert (attributes["penstock.cached_tokens"], attributes["gen_ai.usage.output_tokens"]) == (60, 7)
    assert (tool.start_time, tool.end_time) == (seconds(6), seconds(7.25))
    assert not tool.status.is_ok
    assert [(event.name, dict(event.attributes or {})) for event in program.events] == [
        ("Retain", {"reason": "soon back"})
    ]


CLIENT_TRACE, CLIENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_turn_joins_the_trace_of_its_client() -> None:
    """Its program does if it was its first; a client that does not sample has no trace told."""
    client = f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01"
    traced = Traced()
    traced.tell(
        ev.TurnQueued(program_id="p", turn_id="1", trace=client),
        ev.TurnSubmitted(publisher="gpu7/engine-1/b", program_id="p", turn_id="1", projected_blocks=1),
        ev.TurnEnded(program_id="p", turn_id="1"),
        ev.ProgramEnded(program_id="p"),
    )
    assert {f"{span.context.trace_id:032x}" for span in traced.spans.values() if span.context} == {CLIENT_TRACE}
    turn = traced.spans["turn"]
    assert f"{turn.parent.span_id:016x}" == CLIENT_SPAN  # type: ignore[union-attr]
    assert [link.context for link in turn.links] == [traced.spans["program"].context]
    assert turn.attributes["penstock.engine"] == "gpu7/engine-1"  # type: ignore[index]
    later = Traced()
    later.tell(
        ev.TurnQueued(program_id="p", turn_id="1"),
        ev.TurnEnded(program_id="p", turn_id="1"),
        ev.TurnSubmitted(program_id="p", turn_id="2", projected_blocks=1, trace=client),
        ev.TurnEnded(program_id="p", turn_id="2"),
    )
    parents = [span.parent for span in later.exporter.get_finished_spans()]
    assert [f"{parent.trace_id:032x}" == CLIENT_TRACE for parent in parents if parent] == [False, True]
    unsampled = Traced()
    unsampled.tell(
        ev.TurnQueued(program_id="p", turn_id="1", trace=client[:-1] + "0"),
        ev.TurnAbandoned(program_id="p", turn_id="1"),
    )
    assert unsampled.spans == {}


def test_a_child_is_in_its_parents_trace_and_who_left_unserved_says_why() -> None:
    traced = Traced()
    traced.tell(
        ev.TurnSubmitted(program_id="root", turn_id="1", projected_blocks=1),
        ev.TurnQueued(program_id="child", turn_id="2", parent_id="root"),
        ev.TurnAbandoned(program_id="child", turn_id="2", reason="the client left while held"),
        ev.ProgramEnded(program_id="child"),
    )
    assert traced.spans["turn"].status.description == "the client left while held"
    traced.tell(ev.ProgramEnded(program_id="root"))
    child, root = (span for span in traced.exporter.get_finished_spans() if span.name == "program")
    assert child.parent.span_id == root.context.span_id  # type: ignore[union-attr]


def test_what_is_open_at_the_end_is_closed() -> None:
    traced = Traced()
    traced.tell(
        ev.TurnSubmitted(program_id="p", turn_id="1", projected_blocks=1),
        ev.ToolStarted(program_id="p", call_id="c", tool="bash"),
        ev.TurnEnded(program_id="p", turn_id="unknown"),
        ev.TurnAbandoned(program_id="p", turn_id="unknown"),
    )
    assert traced.spans == {}
    traced.traces.close()
    assert set(traced.spans) == {"program", "turn", "tool bash"}
