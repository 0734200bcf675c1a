"""SGLang without the plugin, started with ``--enable-session-radix-cache``: a gate outside holds contexts by its
sessions, and closes them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from engine_client import EngineClient
from engine_load import PROMPT_TOKENS, fill, first_turn, next_turn
from engine_server import EngineServer, serving
from engine_versions import KIND, on
from support.daemon_process import eventually
from support.outside_gates import gate_outside, health_of

from controlplane.core.model import commands as cmd
from controlplane.core.model.events import CommandApplied, Event
from controlplane.core.model.types import seconds
from controlplane.gate.engine_api import EngineAccess
from controlplane.gate.tickets import Ticket
from engine_hooks.sglang.api import SglangSessions

pytestmark = on("sglang")

TIMEOUT_S = 240.0
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def engine(engine_env: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    folder = tmp_path_factory.mktemp("sessions")
    flag = ("--enable-session-radix-cache",)
    yield from serving(KIND.server_class(folder, environment=engine_env, model=tiny_model, arguments=flag))


class Client(EngineClient):
    """Asks the API what to set in each turn's body, as a gate does."""

    def __init__(self, engine: EngineServer, http: aiohttp.ClientSession, api: SglangSessions) -> None:
        super().__init__(engine, http)
        self._api = api

    async def post(self, path: str, body: Any, program_id: str = "", **more: str) -> Any:
        if not program_id:
            return await super().post(path, body, **more)
        ticket = Ticket(program_id=program_id, turn_id=str(time.monotonic_ns()))
        try:
            return await super().post(path, {**body, **await self._api.before_turn(ticket, path)}, program_id)
        finally:
            self._api.turn_ended(ticket)


@asynccontextmanager
async def obeying(engine: EngineServer) -> AsyncIterator[tuple[Client, SglangSessions, list[Event]]]:
    told: list[Event] = []
    api = SglangSessions(EngineAccess(address=engine.url.rpartition("/")[2], emit=told.append))
    async with aiohttp.ClientSession() as http:
        runs = asyncio.create_task(api.run())
        try:
            await eventually(lambda: not (api.problem or api._sessions.closing), what="it obeys")
            yield Client(engine, http, api), api, told
        finally:
            runs.cancel()
            await asyncio.gather(runs, return_exceptions=True)


async def test_what_a_session_holds_stays_until_the_daemons_word_or_its_time(engine: EngineServer) -> None:
    async with obeying(engine) as (client, api, told):
        names = ("kept", "retained", "discarded", "timed-out", "parked")
        said = {name: await first_turn(client, name, seed=40 + n) for n, name in enumerate(names)}
        for number, command in enumerate(
            (
                cmd.Retain(program_id="retained", ttl_ns=seconds(600)),
                cmd.Retain(program_id="discarded", ttl_ns=seconds(600)),
                cmd.Discard(program_id="discarded"),
                cmd.Retain(program_id="timed-out", ttl_ns=1),
                cmd.Pause(program_id="parked"),
            )
        ):
            api.on_command(command)
            applied = [event for event in told if isinstance(event, CommandApplied)]
            assert len(applied) == min(number, 3) + 1
        await eventually(lambda: len(api._sessions.by_program) == 2, what="three are closed")
        await eventually(lambda: not api._sessions.closing, what="by the engine, too")
        await fill(client, seed=60, program="")
        for name in names:
            cached = (await next_turn(client, name, said[name])).cached_tokens
            assert (name, cached >= PROMPT_TOKENS) == (name, name in ("kept", "retained"))


async def test_who_begins_closes_what_was_left_open(engine: EngineServer) -> None:
    async with obeying(engine) as (client, _, _):
        said = await first_turn(client, "left-open", seed=80)
    async with obeying(engine) as (client, _, _):
        await fill(client, seed=81, program="")
        assert (await next_turn(client, "left-open", said)).cached_tokens < PROMPT_TOKENS


async def shows(http: aiohttp.ClientSession, url: str, log: Path, scheduler: str) -> dict[str, Any]:
    """The gate's health once it is governed and says that of the scheduler."""
    found: dict[str, Any] = {}

    async def look() -> bool:
        found.update(await health_of(http, url))
        return found.get("mode") == "governed" and scheduler in found["outside"]["scheduler"]

    try:
        await eventually(look, what=scheduler, timeout_s=TIMEOUT_S)
    except AssertionError:
        raise AssertionError(f"{found}\n{log.read_text()[-2000:]}") from None
    return found


@asynccontextmanager
async def behind_a_gate(
    engine: EngineServer, folder: Path, scheduler: str
) -> AsyncIterator[tuple[EngineClient, aiohttp.ClientSession, dict[str, Any]]]:
    """Through a gate that says that of the scheduler: a client, its session, and the gate's health."""
    log = folder / "gate.log"
    async with aiohttp.ClientSession() as http:
        client = EngineClient(engine, http)
        with gate_outside(engine.url, folder, log) as (client.url, _):
            yield client, http, await shows(http, client.url, log, scheduler)


async def test_behind_a_gate_running_programs_are_kept_and_ended_ones_go_first(
    engine: EngineServer, tmp_path: Path
) -> None:
    async with behind_a_gate(engine, tmp_path, "obeys by its API") as (client, http, health):
        assert health["engine"]["retention"] == "by the engine's API"
        said = {name: await first_turn(client, name, seed=20 + n) for n, name in enumerate(("runs", "ends"))}
        closes = engine.log.count("release_session")
        answer = await client.post("/close_session", {"session_id": "ends"})
        assert answer.status == 200
        await eventually(lambda: engine.log.count("release_session") == closes + 2, what="theirs and ours close")
        await fill(EngineClient(engine, http), seed=30, program="")
        assert (await next_turn(client, "runs", said["runs"])).cached_tokens >= PROMPT_TOKENS
        assert (await next_turn(client, "ends", said["ends"])).cached_tokens < PROMPT_TOKENS
        asked = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "w1"}]}
        own = await client.post(CHAT, {**asked, "session_params": {"id": "mine"}}, "own")
        assert "both be set" not in json.dumps(own.body), "whoever has a session of SGLang's is left alone"


async def test_without_the_flag_it_is_as_any_server_and_says_why(
    stock_engine: EngineServer, tmp_path: Path
) -> None:
    why = "it was started without --enable-session-radix-cache"
    async with behind_a_gate(stock_engine, tmp_path, why) as (client, _, health):
        assert "--enable-session-radix-cache" in health["engine"]["retention"]
        assert (await client.chat("p", "w1")).status == 200
