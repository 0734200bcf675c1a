"""What is published for engines without a plugin, and what a controller makes of it."""

import asyncio
from typing import Any

import pytest
from support.core_driver import Driver, Publisher

from controlplane.core import events as ev
from controlplane.core.prompt_size import PromptSize
from controlplane.core.types import seconds
from controlplane.fleet.metrics_page import PoolPage
from controlplane.fleet.plain import NO_PLUGIN, PlainEngines
from controlplane.fleet.roster import Engine, Roster
from controlplane.gate.tickets import Ticket

pytestmark = pytest.mark.asyncio

PLAIN = Engine(place="east/engine-8000", address="10.0.0.1:8000", has_plugin=False)
OTHER = Engine(place="east/engine-8001", address="10.0.0.1:8001", has_plugin=False, pool_tokens=4000)
WITH_PLUGIN = Engine(place="west/engine-30000", address="10.0.0.2:30000")
USAGE = (
    b'{"usage": {"prompt_tokens": 500, "completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 384}}}'
)


class PublisherDouble:
    """An emitter without a bus: it numbers the events as one would, and keeps them."""

    def __init__(self, place: str, boot: int) -> None:
        self._number = Publisher(f"{place}/{boot}")
        self.events: list[Any] = []
        self.started = self.closed = False
        self.emitted = asyncio.Event()

    def start(self) -> None:
        self.started = True

    def emit(self, event: ev.Event, urgent: bool = False) -> None:
        assert self.started and not self.closed
        names = type(event).__dataclass_fields__.keys() - {"publisher", "sequence"}
        self.events.append(self._number(type(event), **{name: getattr(event, name) for name in names}))
        self.emitted.set()

    def close(self, timeout_s: float = 0.0) -> None:
        self.closed = True


class Bench:
    """A roster with two engines that have no plugin and one that has, and a clock that the test turns."""

    def __init__(self) -> None:
        self.now_ns = seconds(100)
        self.roster = Roster([PLAIN, OTHER, WITH_PLUGIN])
        self.made: list[PublisherDouble] = []
        self.plain = PlainEngines(self.roster, self._make, now_ns=lambda: self.now_ns)
        self.plain.lead()

    def _make(self, node: str, role: str) -> PublisherDouble:
        double = PublisherDouble(f"{node}/{role}", len(self.made))
        self.made.append(double)
        return double

    def events(self, engine: Engine = PLAIN) -> list[Any]:
        return [event for one in self.made for event in one.events if ev.place_of(event.publisher) == engine.place]

    def turn(self, name: str, engine: Engine = PLAIN, status: int = 200, answer: bytes = b"") -> None:
        ticket = Ticket(turn_id=f"{name}.1", program_id=name, prompt=PromptSize(prompt_bytes=2000))
        self.plain.began(ticket, engine, self.now_ns)
        self.now_ns += seconds(1)
        if status:
            self.plain.first_byte(ticket, engine, status, self.now_ns)
        self.now_ns += seconds(2)
        if answer:
            self.plain.passed(ticket.turn_id, answer, self.now_ns)
        self.plain.ended(ticket, engine, status, self.now_ns)


def kinds(events: list[Any]) -> list[str]:
    return [type(event).__name__ for event in events]


async def test_a_turn_is_told_from_its_bytes_where_nobody_tells_its_tokens() -> None:
    bench = Bench()
    bench.turn("p")
    submitted, first, ended = bench.events()
    assert (submitted.turn_id, submitted.prompt_tokens) == ("p.1", 0)
    assert submitted.projected_blocks == 2000 // 4 + 16 + 256
    assert (first.prompt_tokens, first.cached_tokens) == (0, 0), "nothing is learned from it"
    assert (ended.prompt_tokens, ended.output_tokens, ended.ok, ended.estimated) == (516, 256, True, True)
    assert ended.service_ns == seconds(3)


async def test_usage_tells_sizes_and_what_was_cached_and_the_next_turn_is_estimated_by_it() -> None:
    bench = Bench()
    bench.turn("p", answer=USAGE)
    assert kinds(bench.events()) == ["TurnSubmitted", "FirstToken", "FirstToken", "TurnEnded"]
    known, ended = bench.events()[2:]
    assert (known.prompt_tokens, known.cached_tokens) == (500, 384)
    assert (ended.prompt_tokens, ended.output_tokens, ended.cached_tokens) == (500, 40, 384)
    bench.turn("q")
    submitted = bench.events()[4]
    assert submitted.projected_blocks == 2000 // 4 + 16 + 40


async def test_the_last_bytes_may_come_behind_the_news_of_the_end() -> None:
    bench = Bench()
    ticket = Ticket(turn_id="p.1", program_id="p", prompt=PromptSize(prompt_bytes=2000))
    bench.plain.began(ticket, PLAIN, bench.now_ns)
    bench.plain.first_byte(ticket, PLAIN, 200, bench.now_ns)
    bench.plain.passed("p.1", b'{"choices": [', bench.now_ns)
    bench.plain.ended(ticket, PLAIN, 200, bench.now_ns)
    assert kinds(bench.events())[-1] == "FirstToken", "it waits"
    bench.plain.passed("p.1", b"], " + USAGE[1:], bench.now_ns)
    assert bench.events()[-1].prompt_tokens == 500
    bench.turn("q", answer=b'data: {"choices": []}\n\ndata: [DONE]\n\n')
    assert kinds(bench.events())[-1] == "TurnEnded", "that was all of it"
    bench.turn("r", answer=b"half an answ")
    bench.made[0].emitted.clear()
    bench.made[1].emitted.clear()
    told = [asyncio.ensure_future(one.emitted.wait()) for one in bench.made]
    await asyncio.wait(told, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert (kinds(bench.events())[-1], bench.events()[-1].turn_id) == ("TurnEnded", "r.1")
    for each in told:
        each.cancel()


async def test_failures_and_turns_that_were_cut_end_without_a_context() -> None:
    bench = Bench()
    bench.turn("p", status=503)
    assert kinds(bench.events()) == ["TurnSubmitted", "TurnEnded"]
    assert (bench.events()[-1].ok, bench.events()[-1].output_tokens) == (False, 0)
    ticket = Ticket(turn_id="q.1", program_id="q", prompt=PromptSize(prompt_bytes=2000))
    bench.plain.began(ticket, PLAIN, bench.now_ns)
    bench.plain.cut(ticket, PLAIN, bench.now_ns)
    bench.plain.began(ticket, OTHER, bench.now_ns)
    bench.plain.ended(ticket, OTHER, 200, bench.now_ns)
    assert bench.events()[-1].ok is False
    assert [(event.turn_id, getattr(event, "ok", None)) for event in bench.events(OTHER)] == [
        ("q.1", None),
        ("q.1", True),
    ]
    bench.turn("r", status=0)
    assert bench.events()[-1].ok is False, "there was no answer: this proxy tells of answers"


async def test_a_proxy_that_never_tells_a_status_is_believed() -> None:
    bench = Bench()
    bench.turn("p", status=0)
    assert bench.events()[-1].ok is True


async def test_nothing_is_told_of_engines_with_a_plugin_nor_by_who_does_not_lead() -> None:
    bench = Bench()
    bench.turn("p", WITH_PLUGIN)
    assert bench.events(WITH_PLUGIN) == []
    assert bench.plain.answers == {WITH_PLUGIN.place: 1}, "but it was heard"
    await bench.plain.stop()
    assert all(one.closed for one in bench.made)
    bench.turn("q")
    bench.plain.sampled(PLAIN, PoolPage(engine="vllm", total_tokens=1000))
    assert bench.events() == []
    bench.plain.lead()
    bench.turn("r")
    assert kinds(bench.events()) == ["TurnSubmitted", "FirstToken", "TurnEnded"]


async def test_the_pool_is_the_pages_else_the_rosters_else_nothing() -> None:
    bench = Bench()
    page = PoolPage(engine="vllm", total_tokens=16_000, free_tokens=12_000, block_tokens=16, turns_running=3)
    bench.plain.sampled(PLAIN, page)
    sample = bench.events()[-1]
    assert (sample.total_blocks, sample.free_blocks, sample.block_tokens, sample.turns_running) == (
        1000,
        750,
        16,
        3,
    )
    assert sample.reason == NO_PLUGIN
    ticket = Ticket(turn_id="p.1", program_id="p", prompt=PromptSize(prompt_bytes=2000))
    bench.plain.began(ticket, OTHER, bench.now_ns)
    bench.plain.sampled(OTHER, PoolPage(engine=""))
    sample = bench.events(OTHER)[-1]
    assert (sample.total_blocks, sample.free_blocks, sample.turns_running) == (4000, 4000 - 772, 1)
    health: Any = bench.plain.health()
    assert health[PLAIN.place]["pool"] == "the metrics page of vllm"
    assert "retention" in health[PLAIN.place]
    bench.roster.put(Engine(place=OTHER.place, address=OTHER.address, has_plugin=False))
    before = len(bench.events(OTHER))
    bench.plain.sampled(Engine(place=OTHER.place, address=OTHER.address, has_plugin=False), PoolPage(engine=""))
    assert len(bench.events(OTHER)) == before
    health = bench.plain.health()
    assert "pool_tokens" in health[OTHER.place]["pool"], "it says what to do"


async def test_an_engine_that_joins_is_published_for_and_one_that_leaves_is_no_more() -> None:
    bench = Bench()
    third = Engine(place="east/engine-8002", address="10.0.0.1:8002", has_plugin=False)
    bench.roster.put(third)
    bench.turn("p", third)
    assert len(bench.events(third)) == 3
    bench.roster.remove(third.place)
    bench.turn("q", third)
    assert len(bench.events(third)) == 3
    await bench.plain.stop()
    assert all(one.closed for one in bench.made)


async def test_a_controller_has_the_same_ledger_from_it_as_from_an_engine_that_tells_itself() -> None:
    bench, driver = Bench(), Driver()
    page = PoolPage(engine="vllm", total_tokens=16_000, free_tokens=16_000, block_tokens=1)
    bench.plain.sampled(PLAIN, page)
    bench.plain.sampled(OTHER, PoolPage(engine=""))
    bench.turn("p", PLAIN, answer=USAGE)
    bench.turn("q", OTHER)
    open_ticket = Ticket(turn_id="r.1", program_id="r", prompt=PromptSize(prompt_bytes=2000))
    bench.plain.began(open_ticket, OTHER, bench.now_ns)
    for one in bench.made:
        driver.send(*one.events)
    ledger = driver.ledger
    assert sorted(ledger.engines.pools) == [PLAIN.place, OTHER.place]
    assert (driver.program("p").replica, driver.program("p").context_tokens) == (PLAIN.place, 540)
    assert driver.program("q").replica == OTHER.place
    assert list(ledger.turns.running) == ["r.1"]
    assert driver.counts.contradictions == 0
    seen = len(bench.events(OTHER))
    bench.now_ns += seconds(20)
    bench.plain.sampled(OTHER, PoolPage(engine=""))
    restated = [event for event in bench.events(OTHER)[seen:] if isinstance(event, ev.PublisherState)]
    assert [turn.turn_id for turn in restated[0].open_turns] == ["r.1"]
    driver.send(*bench.events(OTHER)[seen:])
    assert list(ledger.turns.running) == ["r.1"]
    assert driver.counts.contradictions == 0
