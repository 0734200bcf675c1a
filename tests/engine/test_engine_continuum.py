"""Continuum's rules inside the running engine, beside the stock ones: who waits for pinned memory, who is first."""

import asyncio

import pytest
from engine_client import Messages
from engine_load import PROMPT_TOKENS, next_turn
from engine_scene import Bus, Scene, play, policies_told
from engine_server import EngineServer
from tiny_model import words

from controlplane.core.commands import Retain
from controlplane.core.events import CommandApplied, FirstToken, TurnEnded, TurnSubmitted
from controlplane.core.types import seconds

STOCK = 'preset = "fcfs"\n'
CONTINUUM = STOCK + '[priority]\npolicy = "ttl_first"\n[memory]\npolicy = "lru"\nkeep_pins = true\n'
BOTH = pytest.mark.parametrize("config", [STOCK, CONTINUUM], ids=["stock", "continuum"])


async def pinned(scene: Scene, program_id: str, seed: int, tokens: int = PROMPT_TOKENS) -> Messages:
    """A program whose first turn ended, and whose context is pinned for a minute; its messages."""
    messages = [{"role": "user", "content": words(seed, tokens)}]
    reply = await scene.chat(program_id, messages)
    assert reply.status == 200
    (command_id,) = await scene.say(Retain(program_id=program_id, ttl_ns=seconds(60)))
    await scene.until(CommandApplied, command_id=command_id)
    return [*messages, {"role": "assistant", "content": reply.text}]


async def running(
    scene: Scene, program_id: str, seed: int, tokens: int, output_tokens: int
) -> "asyncio.Task[object]":
    """A turn that decodes for a while, once it has begun to."""
    turn = asyncio.ensure_future(scene.chat(program_id, words(seed, tokens), output_tokens=output_tokens))
    await scene.until(FirstToken, program_id=program_id)
    return turn


@BOTH
def test_a_turn_waits_for_pinned_memory(plugin_engine: EngineServer, bus: Bus, config: str) -> None:
    """Continuum §5.2. Elsewhere the pin goes as soon as a turn needs its room."""
    keeps = config == CONTINUUM

    async def story(scene: Scene) -> None:
        await policies_told(plugin_engine, config)
        await scene.flush()
        messages = await pinned(scene, f"pinned-{keeps}", seed=800)
        holder = await running(scene, f"holder-{keeps}", 801, 600, 900)
        large = asyncio.ensure_future(scene.chat(f"large-{keeps}", words(802, 2500)))
        await asyncio.gather(holder, large)
        ended = await scene.until(TurnEnded, program_id=f"holder-{keeps}")
        first = await scene.until(FirstToken, program_id=f"large-{keeps}")
        assert (first.at_ns > ended.at_ns) is keeps
        reply = await next_turn(scene, f"pinned-{keeps}", messages)
        assert (reply.cached_tokens >= PROMPT_TOKENS) is keeps

    bus.daemon(config)
    play(story, plugin_engine, bus)


@BOTH
def test_whoever_comes_back_to_a_pin_goes_before_who_came_earlier(
    plugin_engine: EngineServer, bus: Bus, config: str
) -> None:
    """Continuum §4.3."""
    keeps = config == CONTINUUM

    async def story(scene: Scene) -> None:
        await policies_told(plugin_engine, config)
        await scene.flush()
        names = [f"{name}-{keeps}" for name in ("came-first", "comes-back", "holder")]
        assert (await scene.chat(names[0], words(810, 40))).status == 200  # its program is older than the other
        messages = await pinned(scene, names[1], seed=811, tokens=1200)
        holder = await running(scene, names[2], 812, 600, 1500)
        earlier = asyncio.ensure_future(scene.chat(names[0], words(813, 2000)))
        await scene.until(TurnSubmitted, count=2, program_id=names[0])
        back = asyncio.ensure_future(
            scene.chat(names[1], [*messages, {"role": "user", "content": words(814, 900)}], output_tokens=200)
        )
        replies = await asyncio.gather(earlier, back, holder)
        assert replies[1].status == 200  # type: ignore[attr-defined]
        first = [await scene.until(FirstToken, count=2, program_id=name) for name in names[:2]]
        assert (first[1].at_ns < first[0].at_ns) is keeps

    bus.daemon(config)
    play(story, plugin_engine, bus)


def test_a_deadlock_of_pins_is_broken_from_the_latest_program_on(plugin_engine: EngineServer, bus: Bus) -> None:
    """Continuum §5.2: nothing runs and nothing can begin, so pins go until the first turn fits."""

    async def story(scene: Scene) -> None:
        await policies_told(plugin_engine, CONTINUUM)
        await scene.flush()
        first = await pinned(scene, "first-of-two", seed=820, tokens=900)
        second = await pinned(scene, "second-of-two", seed=821, tokens=900)
        assert (await scene.chat("large-one", words(822, 2800))).status == 200
        kept = await scene.chat("first-of-two", [*first, {"role": "user", "content": "w3 w4"}])
        gone = await scene.chat("second-of-two", [*second, {"role": "user", "content": "w3 w4"}])
        assert (kept.cached_tokens >= 900, gone.cached_tokens >= 900) == (True, False)

    bus.daemon(CONTINUUM)
    play(story, plugin_engine, bus)
