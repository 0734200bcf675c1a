"""Events, read from the stream, against what the engine itself says: its usage of each turn, and its metrics."""

import asyncio
import time
from typing import Any

from engine_client import EngineClient, Reply
from engine_load import first_turn, next_turn
from engine_scene import FCFS, Bus, Scene, playing
from engine_server import EngineServer
from engine_versions import on
from support.turn_contract import Answer, Messages, check_events, tell_story
from tiny_model import words

from controlplane.core.model.events import FirstToken, PoolSampled, TurnEnded, TurnSubmitted

LOAD_LAG_TOKENS = 64  # the engine's own figure follows its steps with a delay


async def account(scene: Scene, program_id: str, replies: list[Reply]) -> None:
    """Every turn of the program has one event of each kind, and they say what the engine's usage says."""
    await scene.until(TurnEnded, len(replies), program_id=program_id)
    told: list[tuple[int, int, int]] = []
    for ended in scene.heard(TurnEnded, program_id=program_id):
        (submitted,) = scene.heard(TurnSubmitted, program_id=program_id, turn_id=ended.turn_id)
        (first,) = scene.heard(FirstToken, program_id=program_id, turn_id=ended.turn_id)
        assert ended.ok
        assert submitted.prompt_tokens == first.prompt_tokens == ended.prompt_tokens
        assert first.cached_tokens == ended.cached_tokens
        assert submitted.projected_blocks * scene.block_tokens >= submitted.prompt_tokens
        assert submitted.at_ns <= first.at_ns <= ended.at_ns
        assert 0 <= first.launch_delay_ns + first.prefill_ns <= ended.at_ns - submitted.at_ns
        assert 0 < ended.service_ns <= ended.at_ns - submitted.at_ns
        told.append((ended.prompt_tokens, ended.output_tokens, ended.cached_tokens))
    used = [(reply.prompt_tokens, reply.output_tokens, reply.cached_tokens) for reply in replies]
    assert sorted(told) == sorted(used)


async def test_turns_under_kv_pressure(plugin_engine: EngineServer, bus: Bus) -> None:
    """Six programs of three turns at once need more than the pool, so that some return to a cache that is gone."""

    async def program(scene: Scene, number: int) -> list[Reply]:
        messages = [{"role": "user", "content": words(200 + number, 400)}]
        replies = []
        for turn in range(3):
            reply = await scene.chat(f"e{number}", messages, output_tokens=50 + number, stream=number % 2 == 0)
            messages.append({"role": "assistant", "content": reply.text})
            messages.append({"role": "user", "content": words(220 + 10 * turn + number, 200)})
            replies.append(reply)
        return replies

    async with playing(plugin_engine, bus, FCFS) as scene:
        before = await scene.metrics()
        programs = await asyncio.gather(*(program(scene, number) for number in range(6)))
        for number, replies in enumerate(programs):
            assert [reply.status for reply in replies] == [200] * 3
            await account(scene, f"e{number}", replies)
        ended = [event for event in scene.heard(TurnEnded) if event.program_id.startswith("e")]
        hit_ratio = sum(e.cached_tokens for e in ended) / sum(e.prompt_tokens for e in ended)
        assert 0 < hit_ratio < 0.6, "the pool is too small for all of them"
        after = await scene.metrics()
        assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == sum(e.prompt_tokens for e in ended)
        grown = after["generation_tokens_total"] - before["generation_tokens_total"]
        assert grown == sum(e.output_tokens for e in ended)


async def test_it_tells_and_caches_as_every_source_of_turns_does(plugin_engine: EngineServer, bus: Bus) -> None:
    async with playing(plugin_engine, bus, FCFS) as scene:

        async def ask(name: str, messages: Messages) -> Answer:
            reply = await scene.chat(name, messages)
            assert reply.status == 200
            return Answer(
                text=reply.text,
                prompt_tokens=reply.prompt_tokens,
                output_tokens=reply.output_tokens,
                cached_tokens=reply.cached_tokens,
            )

        before = set(map(id, scene.heard(TurnEnded)))
        answers = await tell_story(ask, lambda seed, count: words(700 + seed, count))
        await scene.until(TurnEnded, len(before) + len(answers))
        new = {event.turn_id for event in scene.heard(TurnEnded) if id(event) not in before}
        heard = [*scene.heard(TurnSubmitted), *scene.heard(FirstToken), *scene.heard(TurnEnded)]
        check_events([event for event in heard if event.turn_id in new], answers)


async def test_turns_of_one_token_and_one_whose_client_leaves(plugin_engine: EngineServer, bus: Bus) -> None:
    """The former end in the step that gives the token."""
    async with playing(plugin_engine, bus, FCFS) as scene:
        messages = [{"role": "user", "content": words(300, 400)}]
        replies = [await scene.chat("short", messages, output_tokens=1, stream=stream) for stream in (False, True)]
        assert [reply.output_tokens for reply in replies] == [1, 1]
        await account(scene, "short", replies)
        asking = asyncio.ensure_future(scene.chat("leaves", words(301, 40), output_tokens=3000, stream=True))
        first = await scene.until(FirstToken, program_id="leaves")
        asking.cancel()
        ended = await scene.until(TurnEnded, program_id="leaves")
        assert (ended.turn_id, ended.ok) == (first.turn_id, False)
        assert ended.output_tokens < 3000


@on("sglang")
async def test_pool_samples_and_the_engines_own_figures(plugin_engine: EngineServer, bus: Bus) -> None:
    async with playing(plugin_engine, bus, FCFS) as scene:
        running = asyncio.ensure_future(scene.chat("pool", words(310, 900), output_tokens=1500))
        await scene.until(FirstToken, program_id="pool")
        before = await _load(scene)
        read_ns = time.monotonic_ns()  # what was on its way before is heard late on a busy machine
        sample = await scene.until(PoolSampled, turns_running=1, where=lambda event: event.at_ns > read_ns)
        after = await _load(scene)
        assert (sample.total_blocks, sample.block_tokens) == (plugin_engine.pool_tokens, 1)
        assert after["max_total_num_tokens"] == plugin_engine.pool_tokens
        assert after["num_running_reqs"] == 1
        used = sample.total_blocks - sample.free_blocks - sample.evictable_blocks
        assert 900 <= before["num_used_tokens"] <= used <= after["num_used_tokens"] + LOAD_LAG_TOKENS
        assert (await running).status == 200
        heard = len(scene.heard(PoolSampled))
        await next_turn(scene, "pool", await first_turn(scene, "pool", seed=320))
        sample = await scene.until(PoolSampled, heard + 1, where=lambda event: event.turns_running == 0)
        assert sample.free_blocks + sample.evictable_blocks == sample.total_blocks
        assert sample.evictable_blocks > 900
        assert (await _load(scene))["num_used_tokens"] == 0


async def _load(client: EngineClient) -> Any:
    (load,) = (await client.json("/v1/loads"))["loads"]
    return load
