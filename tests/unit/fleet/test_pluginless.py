"""Engines without a plugin: what is published for them, what a controller makes of it, who finds them gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from support.core_driver import Driver, Publisher
from support.pickers import until
from support.ports import free_port

from controlplane.core.estimators.prompt_size import PromptSize
from controlplane.core.model import events as ev
from controlplane.core.model.commands import Pause
from controlplane.core.model.places import place_of
from controlplane.core.model.types import seconds
from controlplane.fleet.checkup import Checkup, Patience
from controlplane.fleet.engine_apis import ObeyingEngine
from controlplane.fleet.metrics_page import PoolPage
from controlplane.fleet.pluginless import PluginlessEngines
from controlplane.fleet.roster import Engine, Roster, Standing
from controlplane.gate.tickets import Ticket
from controlplane.gate.usage import Usage
from engine_hooks.sglang.api import SglangSessions

PLAIN = Engine(place="east/engine-8000", address="10.0.0.1:8000", has_plugin=False)
OTHER = Engine(place="east/engine-8001", address="10.0.0.1:8001", has_plugin=False, pool_tokens=4000)
WITH_PLUGIN = Engine(place="west/engine-30000", address="10.0.0.2:30000")
USAGE = Usage(prompt_tokens=500, output_tokens=40, cached_tokens=384)


class PublisherDouble:
    """An emitter without a bus: it numbers the events as one would, and keeps them."""

    def __init__(self, place: str, boot: int) -> None:
        self._number = Publisher(f"{place}/{boot}")
        self.events: list[Any] = []
        self.started = self.closed = False

    def start(self) -> None:
        self.started = True

    def emit(self, event: ev.Event, urgent: bool = False) -> None:
        assert self.started and not self.closed
        names = type(event).__dataclass_fields__.keys() - {"publisher", "sequence"}
        self.events.append(self._number(type(event), **{name: getattr(event, name) for name in names}))

    def close(self, timeout_s: float = 0.0) -> None:
        self.closed = True


class Bench:
    """A roster, by default of two engines that have no plugin and one that has, and a clock that the test turns."""

    def __init__(self, *engines: Engine) -> None:
        self.now_ns = seconds(100)
        self.roster = Roster(engines or [PLAIN, OTHER, WITH_PLUGIN])
        self.made: list[PublisherDouble] = []
        self.pluginless = PluginlessEngines(self.roster, self._make, now_ns=lambda: self.now_ns)
        self.pluginless.lead()

    def _make(self, node: str, role: str) -> PublisherDouble:
        double = PublisherDouble(f"{node}/{role}", len(self.made))
        self.made.append(double)
        return double

    def events(self, engine: Engine = PLAIN) -> list[Any]:
        return [event for one in self.made for event in one.events if place_of(event.publisher) == engine.place]

    def began(self, name: str, engine: Engine = PLAIN) -> Ticket:
        ticket = Ticket(turn_id=f"{name}.1", program_id=name, prompt=PromptSize(prompt_bytes=2000))
        self.pluginless.began(ticket, engine, self.now_ns)
        return ticket

    def turn(self, name: str, engine: Engine = PLAIN, status: int = 200, usage: Usage | None = None) -> None:
        ticket = self.began(name, engine)
        self.now_ns += seconds(1)
        if status:
            self.pluginless.first_byte(ticket, engine, status, self.now_ns)
        self.now_ns += seconds(2)
        self.pluginless.ended(ticket, engine, status, self.now_ns, usage)


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
    bench.turn("p", usage=USAGE)
    assert kinds(bench.events()) == ["TurnSubmitted", "FirstToken", "FirstToken", "TurnEnded"]
    known, ended = bench.events()[2:]
    assert (known.prompt_tokens, known.cached_tokens) == (500, 384)
    assert (ended.prompt_tokens, ended.output_tokens, ended.cached_tokens) == (500, 40, 384)
    bench.turn("q")
    submitted = bench.events()[4]
    assert submitted.projected_blocks == 2000 // 4 + 16 + 40


async def test_failures_and_turns_that_were_cut_end_without_a_context() -> None:
    bench = Bench()
    bench.turn("p", status=503)
    assert kinds(bench.events()) == ["TurnSubmitted", "TurnEnded"]
    assert (bench.events()[-1].ok, bench.events()[-1].output_tokens) == (False, 0)
    ticket = bench.began("q")
    bench.pluginless.cut(ticket, PLAIN, bench.now_ns)
    bench.pluginless.began(ticket, OTHER, bench.now_ns)
    bench.pluginless.ended(ticket, OTHER, 200, bench.now_ns)
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
    assert bench.pluginless.answers == {WITH_PLUGIN.place: 1}, "but it was heard"
    await bench.pluginless.stop()
    assert all(one.closed for one in bench.made)
    bench.turn("q")
    bench.pluginless.sampled(PLAIN, PoolPage(engine="vllm", total_tokens=1000))
    assert bench.events() == []
    bench.pluginless.lead()
    bench.turn("r")
    assert kinds(bench.events()) == ["TurnSubmitted", "FirstToken", "TurnEnded"]


async def test_the_pool_is_the_pages_else_the_rosters_else_nothing() -> None:
    bench = Bench()
    page = PoolPage(engine="vllm", total_tokens=16_000, free_tokens=12_000, block_tokens=16, turns_running=3)
    bench.pluginless.sampled(PLAIN, page)
    sample = bench.events()[-1]
    assert (sample.total_blocks, sample.free_blocks, sample.block_tokens, sample.turns_running) == (
        1000,
        750,
        16,
        3,
    )
    assert sample.reason == ev.NO_PLUGIN
    bench.began("p", OTHER)
    bench.pluginless.sampled(OTHER, PoolPage(engine=""))
    sample = bench.events(OTHER)[-1]
    assert (sample.total_blocks, sample.free_blocks, sample.turns_running) == (4000, 4000 - 772, 1)
    health: Any = bench.pluginless.health()
    assert health[PLAIN.place]["pool"] == "the metrics page of vllm"
    assert "retention" in health[PLAIN.place]
    unsized = replace(OTHER, pool_tokens=0)
    bench.roster.put(unsized)
    before = len(bench.events(OTHER))
    bench.pluginless.sampled(unsized, PoolPage(engine=""))
    assert len(bench.events(OTHER)) == before
    health = bench.pluginless.health()
    assert "pool_tokens" in health[OTHER.place]["pool"], "it says what to do"


async def test_an_engine_obeys_by_its_api_while_no_plugin_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, page = Bench(), PoolPage(engine="sglang", total_tokens=1000, free_tokens=900)
    obeying = ObeyingEngine(bench.pluginless, "", 0)
    for has_plugin in (True, False, True, False):
        obeying.found(PLAIN, "sglang", has_plugin=has_plugin)
        assert (bench.pluginless.api_of(PLAIN) is None) == has_plugin
        assert obeying.hears(Pause(program_id="p")) != has_plugin
    for problem, told in (("no such flag", ev.NO_PLUGIN), ("", ev.BY_API)):
        monkeypatch.setattr(SglangSessions, "problem", problem)
        bench.pluginless.sampled(PLAIN, page)
        sample = bench.events()[-1]
        assert (sample.total_blocks, sample.free_blocks, sample.reason) == (1000, 900, told)
        assert obeying.problem == problem


async def test_an_engine_that_joins_is_published_for_and_one_that_leaves_is_no_more() -> None:
    bench = Bench()
    third = Engine(place="east/engine-8002", address="10.0.0.1:8002", has_plugin=False)
    bench.roster.put(third)
    bench.turn("p", third)
    assert len(bench.events(third)) == 3
    bench.roster.remove(third.place)
    bench.turn("q", third)
    assert len(bench.events(third)) == 3
    await bench.pluginless.stop()
    assert all(one.closed for one in bench.made)


async def test_a_controller_has_the_same_ledger_from_it_as_from_an_engine_that_tells_itself() -> None:
    bench, driver = Bench(), Driver()
    page = PoolPage(engine="vllm", total_tokens=16_000, free_tokens=16_000, block_tokens=1)
    bench.pluginless.sampled(PLAIN, page)
    bench.pluginless.sampled(OTHER, PoolPage(engine=""))
    bench.turn("p", PLAIN, usage=USAGE)
    bench.turn("q", OTHER)
    bench.began("r", OTHER)
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
    bench.pluginless.sampled(OTHER, PoolPage(engine=""))
    restated = [event for event in bench.events(OTHER)[seen:] if isinstance(event, ev.PublisherState)]
    assert [turn.turn_id for turn in restated[0].open_turns] == ["r.1"]
    driver.send(*bench.events(OTHER)[seen:])
    assert list(ledger.turns.running) == ["r.1"]
    assert driver.counts.contradictions == 0


# Whether they are there


QUICK = Patience(every_ns=seconds(0.05), health_every_ns=seconds(0.2), failures=2, silence_ns=seconds(30))


class EngineDouble:
    """A server with vLLM's pages; ``stop`` and ``start`` are its death and its return."""

    def __init__(self, **known: Any) -> None:
        port = free_port()
        self.status, self.has_page, self.page_hangs = 200, True, False
        self.ends = asyncio.Event()
        self.engine = Engine(place=f"east/engine-{port}", address=f"127.0.0.1:{port}", **known)

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        port = int(self.engine.address.rpartition(":")[2])
        await web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True).start()

    async def stop(self) -> None:
        self.ends.set()
        await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        if self.page_hangs:
            await self.ends.wait()
        if not self.has_page:
            raise web.HTTPNotFound
        info = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0'
        return web.Response(text=f'vllm:kv_cache_usage_perc{{engine="0"}} 0.75\n{info}\n')

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=self.status)


@asynccontextmanager
async def checked(*engines: EngineDouble) -> AsyncIterator[tuple[Bench, Checkup]]:
    bench = Bench(*(each.engine for each in engines))
    checkup = Checkup(bench.roster, bench.pluginless, patience=QUICK)
    for each in engines:
        await each.start()
    checking = asyncio.ensure_future(checkup.run())
    try:
        yield bench, checkup
    finally:
        checking.cancel()
        await asyncio.wait([checking])
        for each in engines:
            await each.stop()


async def becomes(bench: Bench, engine: Engine, standing: Standing) -> None:
    await until(lambda: getattr(bench.roster.at(engine.place), "standing", None) is standing, str(standing))


async def test_a_dead_engine_is_gone_and_returns_as_what_it_was() -> None:
    dying, other = EngineDouble(), EngineDouble(has_plugin=False)
    async with checked(dying, other) as (bench, checkup):
        bench.roster.put(replace(dying.engine, standing=Standing.DRAINING))
        await dying.stop()
        await becomes(bench, dying.engine, Standing.GONE)
        assert bench.roster.at(other.engine.place) == other.engine
        health: Any = checkup.health()
        assert health[dying.engine.place]["problem"]
        await dying.start()
        await becomes(bench, dying.engine, Standing.DRAINING)


async def test_an_engine_that_says_it_is_ill_is_gone_and_one_without_a_page_lives_by_the_roster() -> None:
    ill, bare = EngineDouble(has_plugin=False), EngineDouble(has_plugin=False, pool_tokens=5000)
    bare.has_page, bare.status = False, 404
    hung = EngineDouble(has_plugin=False, pool_tokens=6000)
    hung.page_hangs = True
    async with checked(ill, bare, hung) as (bench, _):
        for one, sizes in ((ill, (1000, 250, 16)), (bare, (5000, 5000, 1)), (hung, (6000, 6000, 1))):
            await until(lambda one=one: "PoolSampled" in kinds(bench.events(one.engine)), "its pool")
            sample = bench.events(one.engine)[-1]
            assert (sample.total_blocks, sample.free_blocks, sample.block_tokens) == sizes
        ill.status = 503
        await becomes(bench, ill.engine, Standing.GONE)
        assert bench.roster.at(bare.engine.place) == bare.engine
        ill.status = 200
        await becomes(bench, ill.engine, Standing.SERVING)
