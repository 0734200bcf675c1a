"""A fleet whose engines have no plugin: fleet daemon, nats-server and Envoy, each a process, as clients see them.

The engines are servers of the test's own with vLLM's pages and ``usage``; no model runs.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from support.daemon_process import BusClient, eventually
from support.envoy import EnvoyProcess
from support.fleets import FleetProcess, running
from support.nats import NatsServer
from support.ports import free_port

from controlplane.fleet.envoy import DataPlane

FLEET = "fleet"
PROMPT_TOKENS, OUTPUT_TOKENS = 500, 40


class PlainEngine:
    """Answers every turn, with its name and a ``usage``; ``stop`` is its death."""

    def __init__(self, node: str) -> None:
        self.port = free_port()
        self.place, self.address = f"{node}/engine-{self.port}", f"127.0.0.1:{self.port}"
        self.turn_ids: list[str] = []
        self.as_it_answers: Callable[[], None] = lambda: None
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.Response:
        await request.read()
        self.turn_ids.append(request.headers.get("x-penstock-turn-id", ""))
        self.as_it_answers()
        usage = {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": OUTPUT_TOKENS,
            "prompt_tokens_details": {"cached_tokens": 480},
        }
        return web.json_response({"place": self.place, "choices": [], "usage": usage})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            text='vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
            'vllm:cache_config_info{block_size="1",engine="0",num_gpu_blocks="16000"} 1.0\n'
        )

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()


@dataclass
class PlainFleet:
    engines: dict[str, PlainEngine]  # by place
    daemon: FleetProcess
    envoy: EnvoyProcess
    bus: BusClient
    http: aiohttp.ClientSession

    async def turn(self, program: str) -> str:
        """The place of the engine that answered."""
        body = {"messages": [{"role": "user", "content": "x" * 2000}]}
        headers = {"x-penstock-program-id": program, "x-penstock-turn-id": "f" * 32}
        async with self.http.post(f"{self.envoy.url}/v1/chat/completions", json=body, headers=headers) as reply:
            text = await reply.text()
            assert reply.status == 200, text
            return str(json.loads(text)["place"])


@asynccontextmanager
async def plain_fleet(server: NatsServer, folder: Path) -> AsyncIterator[PlainFleet]:
    engines = [PlainEngine(node) for node in ("a", "b")]
    options = ["--endpoints", str(folder / "eds.json")]
    for engine in engines:
        options += ["--engine", f"{engine.place}={engine.address},plain"]
    daemon = FleetProcess(0, server.url, folder, *options)
    envoy = EnvoyProcess(
        folder,
        DataPlane(
            pickers=(f"127.0.0.1:{daemon.port}",),
            endpoints=folder / "eds.json",
            listen=f"127.0.0.1:{free_port()}",
            admin=f"127.0.0.1:{free_port()}",
            watches_bodies=True,
        ),
    )
    bus = await BusClient.connect(server.url, FLEET)
    try:
        for engine in engines:
            await engine.start()
        with running(daemon):
            await daemon.says('"event": "serving"')
            envoy.start()

            async def seen() -> bool:
                found = (
                    await asyncio.to_thread(envoy.healthy, "pickers"),
                    await asyncio.to_thread(envoy.healthy, "engines"),
                )
                return (len(found[0]), len(found[1])) == (1, 2)

            await eventually(seen, what="Envoy sees the picker and the engines", timeout_s=60)
            async with aiohttp.ClientSession() as http:
                yield PlainFleet({engine.place: engine for engine in engines}, daemon, envoy, bus, http)
    finally:
        envoy.stop()
        await bus.close()
        for engine in engines:
            await engine.stop()


def turns(status: dict[str, Any], program: str) -> int:
    """Those of it that ended."""
    return int(status["programs"].get(program, {}).get("turn_index", 0))


def pool(status: dict[str, Any]) -> tuple[int, int]:
    """All engines' blocks, and those that are free."""
    pressure = status["status"]["pressure"]
    return pressure["kv_total_blocks"], pressure["kv_free_blocks"]


async def test_engines_that_tell_nothing_have_programs_admitted_placed_and_placed_again(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with plain_fleet(nats_server, tmp_path) as f:
        await f.bus.status_where(lambda s: pool(s) == (32_000, 24_000), "the pools that their pages tell")
        home = await f.turn("one")
        assert await f.turn("two") != home, "where there is more room"
        assert await f.turn("one") == home
        turn_ids = [turn_id for engine in f.engines.values() for turn_id in engine.turn_ids]
        assert len(set(turn_ids)) == 3 and "f" * 32 not in turn_ids, "the fleet's own names, not the client's"
        status = await f.bus.status_where(
            lambda s: (turns(s, "one"), turns(s, "two")) == (2, 1),
            "all turns ended",
        )
        assert status["programs"]["one"]["replica"] == home
        assert status["programs"]["one"]["context_tokens"] == PROMPT_TOKENS + OUTPUT_TOKENS, "as usage says"
        assert not any(each["open_turns"] for each in status["programs"].values())
        await f.engines[home].stop()
        await f.bus.status_where(lambda s: pool(s)[0] == 16_000, "one engine is gone")
        assert await f.turn("one") != home


async def test_a_picker_that_had_no_time_as_a_turn_ended_knows_of_it_all_the_same(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with plain_fleet(nats_server, tmp_path) as f:
        await f.bus.status_where(lambda s: pool(s) == (32_000, 24_000), "the pools that their pages tell")
        for engine in f.engines.values():
            engine.as_it_answers = f.daemon.freeze
        await f.turn("one")
        await asyncio.sleep(0.4)  # a busy machine's; Envoy gives up on a picker that is silent for two seconds
        f.daemon.thaw()
        status = await f.bus.status_where(lambda s: turns(s, "one") == 1, "the turn ended")
        assert status["programs"]["one"]["context_tokens"] == PROMPT_TOKENS + OUTPUT_TOKENS, "as usage says"
