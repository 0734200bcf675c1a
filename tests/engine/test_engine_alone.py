"""An engine without Penstock's daemon: as it is, and with a plugin that nobody governs."""

import asyncio

from engine_client import EngineClient
from engine_load import PROMPT_TOKENS, fill, first_turn, next_turn
from engine_scene import talk
from engine_server import EngineServer
from engine_versions import every_engine, on_every_version
from tiny_model import words


@every_engine
def test_the_stock_engine_forgets_a_program_while_others_fill_the_pool(stock_engine: EngineServer) -> None:
    async def story(client: EngineClient) -> None:
        messages = await first_turn(client, "p", seed=100)
        kept = stock_engine.whole_blocks(PROMPT_TOKENS)
        assert (await next_turn(client, "p", messages)).cached_tokens >= kept
        await fill(client, seed=110)
        assert (await next_turn(client, "p", messages)).cached_tokens == 0

    talk(story, stock_engine)


def test_the_stock_engine_knows_nothing_of_penstock(stock_engine: EngineServer) -> None:
    async def story(client: EngineClient) -> None:
        reply = await client.chat("p", words(130, 20))
        assert (reply.status, reply.held_ms) == (200, -1)
        assert (await client.post("/penstock/health", {})).status == 404

    talk(story, stock_engine)


@every_engine
@on_every_version
def test_without_a_bus_the_plugin_is_passive_and_the_engine_serves(plugin_engine: EngineServer) -> None:
    async def story(client: EngineClient) -> None:
        health = await client.mode("opening" if await client.boot_id() else "passive")
        assert health["plugin"]["passive_because"] == ""
        assert health["emitter"]["connected"] is False
        replies = await asyncio.gather(
            *(client.chat(f"alone-{n}", words(140 + n, 300), output_tokens=40, stream=n % 2 == 1) for n in range(8))
        )
        assert [reply.status for reply in replies] == [200] * 8
        assert [reply.prompt_tokens for reply in replies] == [300] * 8
        assert [reply.output_tokens for reply in replies] == [40] * 8
        assert (await client.json("/penstock/health"))["held_turns"] == 0

    talk(story, plugin_engine)


@every_engine
def test_the_plugin_changes_no_answer(stock_engine: EngineServer, plugin_engine: EngineServer) -> None:
    async def story(client: EngineClient) -> None:
        reply = await client.chat("same", words(150, 300), output_tokens=40)
        assert (reply.status, reply.output_tokens) == (200, 40)
        answers.append(reply.text)

    answers: list[str] = []
    talk(story, stock_engine)
    talk(story, plugin_engine)
    assert answers[0] == answers[1] != ""


@every_engine
@on_every_version
def test_without_a_bus_a_next_turn_misses_as_in_the_stock_engine(plugin_engine: EngineServer) -> None:
    async def story(client: EngineClient) -> None:
        messages = await first_turn(client, "alone", seed=160)
        await fill(client, seed=170)
        assert (await next_turn(client, "alone", messages)).cached_tokens == 0

    talk(story, plugin_engine)
