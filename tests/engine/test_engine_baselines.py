"""Autellix, InferCept and ThunderAgent on the running engine, each as its preset, beside the engine alone."""

import asyncio

import pytest
from engine_load import PROMPT_TOKENS, first_turn, next_turn
from engine_scene import Bus, Scene, play, policies_told
from engine_server import EngineServer
from tiny_model import words

from controlplane.core.commands import Discard, Pause
from controlplane.core.events import (
    FirstToken,
    ProgramEnded,
    ToolStarted,
    TurnEnded,
    TurnQueued,
    TurnSubmitted,
)

STOCK = 'preset = "fcfs"\n'
AUTELLIX = 'preset = "autellix"\n[priority]\nquantum_chunks = 0.1\n'
INFERCEPT = 'preset = "infercept"\n[retention]\ninterval_s = 0.2\n'
THUNDERAGENT = 'preset = "thunderagent"\n[retention]\ninterval_s = 0.2\nhalf_life_s = 3600.0\n'


@pytest.mark.parametrize("config", [STOCK, AUTELLIX], ids=["stock", "autellix"])
def test_whoever_was_served_less_goes_first(plugin_engine: EngineServer, bus: Bus, config: str) -> None:
    """Autellix, PLAS: a newcomer overtakes a program that the engine has computed much for."""
    serves = config == AUTELLIX

    async def story(scene: Scene) -> None:
        await policies_told(plugin_engine, config)
        await scene.flush()
        served, newcomer, holder = (f"{name}-{serves}" for name in ("served", "newcomer", "holds-the-pool"))
        assert (await scene.chat(served, words(900, 1500))).status == 200
        holding = asyncio.ensure_future(scene.chat(holder, words(901, 1200), output_tokens=900))
        await scene.until(FirstToken, program_id=holder)
        again = asyncio.ensure_future(scene.chat(served, words(902, 2700)))
        await scene.until(TurnSubmitted, count=2, program_id=served)
        first = asyncio.ensure_future(scene.chat(newcomer, words(903, 2700)))
        await asyncio.gather(holding, again, first)
        late = await scene.until(FirstToken, count=2, program_id=served)
        early = await scene.until(FirstToken, program_id=newcomer)
        assert (early.at_ns < late.at_ns) is serves

    bus.daemon(config)
    play(story, plugin_engine, bus)


@pytest.mark.parametrize("config", [STOCK, INFERCEPT], ids=["stock", "infercept"])
def test_a_context_goes_once_keeping_it_has_wasted_more_than_computing_it_again(
    plugin_engine: EngineServer, bus: Bus, config: str
) -> None:
    """InferCept: preserved when the tool begins, discarded when the tool turns out to be long."""
    discards = config == INFERCEPT

    async def story(scene: Scene) -> None:
        await policies_told(plugin_engine, config)
        await scene.flush()
        short, long = f"short-{discards}", f"long-{discards}"
        messages = await first_turn(scene, short, seed=910)
        assert (await next_turn(scene, short, messages)).cached_tokens >= PROMPT_TOKENS
        messages = await first_turn(scene, long, seed=911)
        await scene.publish(ToolStarted(program_id=long, call_id="call", tool="bash"))
        if discards:
            await scene.until_done(Discard, long)
        else:
            await asyncio.sleep(1.0)
        assert ((await next_turn(scene, long, messages)).cached_tokens < PROMPT_TOKENS) is discards

    bus.daemon(config)
    play(story, plugin_engine, bus)


def test_a_paused_program_waits_until_the_others_leave_it_room(plugin_engine: EngineServer, bus: Bus) -> None:
    """ThunderAgent §4.3: demand beyond the pool pauses who acts; restored when it fits again."""

    async def story(scene: Scene) -> None:
        acts, grows = "paused-while-acting", "grows-beyond-the-pool"
        await policies_told(plugin_engine, THUNDERAGENT)
        await scene.flush()
        reply = await scene.chat(acts, words(920, 1500))
        assert reply.status == 200
        growing = asyncio.ensure_future(scene.chat(grows, words(921, 1400), output_tokens=1500))
        await scene.until_done(Pause, acts)
        back = asyncio.ensure_future(scene.chat(acts, words(920, 1500), output_tokens=4))
        await scene.until(TurnQueued, count=2, program_id=acts)
        await growing
        await scene.publish(ProgramEnded(program_id=grows))
        assert (await back).status == 200
        ended = await scene.until(TurnEnded, program_id=grows)
        first = await scene.until(FirstToken, count=2, program_id=acts)
        assert first.at_ns > ended.at_ns

    bus.daemon(THUNDERAGENT)
    play(story, plugin_engine, bus)
