"""Engines without a plugin over real HTTP and a real nats-server: their pages, their health, their turns.

The engines are servers of the test's own with vLLM's pages; no model runs.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import nats
import pytest
from aiohttp import web
from support.core_driver import Driver, Publisher, fixed, of
from support.nats import NatsServer
from support.ports import free_port

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.placement.session import Session
from controlplane.core.prompt_size import PromptSize
from controlplane.core.types import seconds
from controlplane.emit.emitter import Emitter
from controlplane.fleet.checkup import Checkup, Patience
from controlplane.fleet.plain import PlainEngines
from controlplane.fleet.roster import Engine, Roster, Standing
from controlplane.gate.tickets import Ticket
from controlplane.wire.codec import decode_events
from controlplane.wire.senders import believed

pytestmark = pytest.mark.asyncio
NODE = "east"
WAIT_S = 60.0  # only a failure waits so long
QUICK = Patience(every_ns=seconds(0.05), health_every_ns=seconds(0.2), failures=2, silence_ns=seconds(30))


class EngineDouble:
    """A server with vLLM's pages; ``stop`` and ``start`` are its death and its return."""

    def __init__(self, **told: Any) -> None:
        self.port = free_port()
        self.used, self.page, self.status = 0.0, True, 200
        self.asked_for_health = 0
        self.engine = Engine(
            place=f"{NODE}/engine-{self.port}", address=f"127.0.0.1:{self.port}", **{"has_plugin": False, **told}
        )
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _metrics(self, _: web.Request) -> web.Response:
        if not self.page:
            raise web.HTTPNotFound
        info = 'block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000"'
        return web.Response(
            text="# HELP vllm:kv_cache_usage_perc KV-cache usage.\n# TYPE vllm:kv_cache_usage_perc gauge\n"
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {self.used}\n'
            f"vllm:cache_config_info{{{info}}} 1.0\n"
        )

    async def _health(self, _: web.Request) -> web.Response:
        self.asked_for_health += 1
        return web.Response(status=self.status)


class Fleet:
    """The parts in front of these engines, and a controller that hears what is published for them."""

    def __init__(self, url: str, engines: list[EngineDouble]) -> None:
        self.roster = Roster(one.engine for one in engines)
        self.driver = Driver(replace(fixed(4), placement=Session()))
        self.driver.gate = Publisher(f"{NODE}/gate/1")
        self.plain = PlainEngines(self.roster, lambda node, role: Emitter(url=url, node=node, role=role))
        self.changes: list[tuple[str, str]] = []
        self.checkup = Checkup(self.roster, self.plain, patience=QUICK, on_change=self._note)
        self.changed = asyncio.Event()
        self.roster.on_change.append(self.changed.set)

    def _note(self, engine: Engine, why: str) -> None:
        self.changes.append((str(engine.standing), why))

    async def hear(self, message: Any) -> None:
        events, refused = believed(decode_events(message.data), message.subject)
        assert refused == []
        self.driver.send(*events)
        self.changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def standing(self, one: EngineDouble) -> Standing:
        engine = self.roster.at(one.engine.place)
        assert engine is not None
        return engine.standing

    def pool(self, one: EngineDouble) -> ev.PoolSampled | None:
        found: ev.PoolSampled | None = self.driver.ledger.engines.pools.get(one.engine.place)
        return found


@asynccontextmanager
async def fleet(server: NatsServer, *engines: EngineDouble) -> AsyncIterator[Fleet]:
    client = await nats.connect(server.url)
    made = Fleet(server.url, list(engines))
    await client.subscribe(f"penstock.v1.{NODE}.event.engine.*", cb=made.hear)
    await client.flush()
    for one in engines:
        await one.start()
    made.plain.lead()
    checking = asyncio.ensure_future(made.checkup.run())
    try:
        yield made
    finally:
        checking.cancel()
        await asyncio.wait([checking])
        await made.plain.stop()
        for one in engines:
            await one.stop()
        await client.close()


async def test_programs_are_admitted_and_placed_where_the_page_tells_of_room(nats_server: NatsServer) -> None:
    full, empty = EngineDouble(), EngineDouble()
    full.used = 0.75
    async with fleet(nats_server, full, empty) as made:
        await made.until(lambda: made.pool(full) and made.pool(empty))
        sample = made.pool(full)
        assert sample is not None
        assert (sample.total_blocks, sample.free_blocks, sample.block_tokens) == (1000, 250, 16)
        driver = made.driver
        driver.ask("big", tokens=12_000)
        commands = driver.tick(1)
        assert [each.program_id for each in of(cmd.Admit, commands)] == ["big"]
        first = of(cmd.Place, commands)[0].replica
        by_place = {one.engine.place: one for one in (full, empty)}
        ticket = Ticket(turn_id="big.1", program_id="big", prompt=PromptSize(prompt_bytes=48_000))
        made.plain.began(ticket, by_place[first].engine, 0)
        await made.until(lambda: "big.1" in driver.ledger.turns.running)
        assert driver.program("big").replica == first
        driver.ask("second", tokens=12_000)
        assert of(cmd.Place, driver.tick(1))[0].replica != first, "the other one has the room"
        made.plain.first_byte(ticket, by_place[first].engine, 200, 0)
        made.plain.ended(ticket, by_place[first].engine, 200, seconds(3))
        await made.until(lambda: not driver.ledger.turns.running)
        assert driver.program("big").context_tokens > 12_000
        assert driver.counts.contradictions == 0


async def test_a_dead_engine_is_gone_and_returns_as_what_it_was(nats_server: NatsServer) -> None:
    dying, other = EngineDouble(has_plugin=True), EngineDouble()
    async with fleet(nats_server, dying, other) as made:
        made.roster.put(replace(dying.engine, standing=Standing.DRAINING))
        await dying.stop()
        await made.until(lambda: made.standing(dying) is Standing.GONE)
        assert made.standing(other) is Standing.SERVING
        health: Any = made.checkup.health()
        assert health[dying.engine.place]["problem"]
        await dying.start()
        await made.until(lambda: made.standing(dying) is not Standing.GONE)
        assert made.standing(dying) is Standing.DRAINING
        assert [standing for standing, _ in made.changes] == ["gone", "draining"]


async def test_an_engine_that_says_it_is_ill_is_gone_and_one_without_a_page_lives_by_the_roster(
    nats_server: NatsServer,
) -> None:
    ill, bare = EngineDouble(), EngineDouble(pool_tokens=5000)
    bare.page = False
    async with fleet(nats_server, ill, bare) as made:
        ill.status, bare.status = 503, 404
        await made.until(lambda: made.standing(ill) is Standing.GONE)
        await made.until(lambda: made.pool(bare))
        sample = made.pool(bare)
        assert sample is not None
        assert 5000 - 16 < sample.total_blocks * sample.block_tokens <= 5000
        assert made.standing(bare) is Standing.SERVING
        ill.status = 200
        await made.until(lambda: made.standing(ill) is Standing.SERVING)
