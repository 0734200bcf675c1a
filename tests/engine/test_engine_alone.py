"""An engine without Penstock's daemon: as it is, and with a plugin that nobody governs."""

import asyncio

from engine_load import PROMPT_TOKENS, fill, first_turn, next_turn
from engine_scene import talking
from engine_server import EngineServer
from tiny_model import words


async def test_the_plugin_changes_no_answer_and_without_a_bus_no_cache(
    stock_engine: EngineServer, plugin_engine: EngineServer
) -> None:
    answers: list[str] = []
    for engine in (stock_engine, plugin_engine):
        async with talking(engine) as client:
            reply = await client.chat("same", words(150, 300), output_tokens=40)
            assert (reply.status, reply.output_tokens) == (200, 40)
            answers.append(reply.text)
            messages = await first_turn(client, "p", seed=100)
            kept = stock_engine.whole_blocks(PROMPT_TOKENS)
            assert (await next_turn(client, "p", messages)).cached_tokens >= kept
            await fill(client, seed=110)
            assert (await next_turn(client, "p", messages)).cached_tokens == 0
    assert answers[0] == answers[1] != ""


async def test_without_a_bus_the_plugin_is_passive_and_the_engine_serves(plugin_engine: EngineServer) -> None:
    async with talking(plugin_engine) as client:
        health = await client.mode("opening" if await client.boot_id() else "passive")
        assert health["plugin"]["passive_because"] == ""
        assert health["emitter"]["connected"] is False
        replies = await asyncio.gather(
            *(client.chat(f"alone-{n}", words(140 + n, 300), output_tokens=40, stream=n % 2 == 1) for n in range(8))
        )
        told = [(reply.status, reply.prompt_tokens, reply.output_tokens) for reply in replies]
        assert told == [(200, 300, 40)] * 8
        assert (await client.penstock())["held_turns"] == 0
