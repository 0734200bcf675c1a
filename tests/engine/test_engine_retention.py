"""Retention at the running engine: what is kept, what is freed now, and what ends by itself."""

import asyncio

from engine_load import PROMPT_TOKENS, fill, first_turn, next_turn, obeys_and_ends_pins_at_once
from engine_scene import FCFS, Bus, Scene, playing
from engine_server import POOL_TOKENS, EngineServer
from engine_versions import on_every_version
from tiny_model import words

from controlplane.core.model.commands import Discard, Release, Retain
from controlplane.core.model.events import PoolSampled
from controlplane.core.model.types import seconds

LONG_NS = seconds(600)


@on_every_version
async def test_who_is_retained_hits_where_others_miss(plugin_engine: EngineServer, bus: Bus) -> None:
    """Freed at once, unpinned, or left to the engine's own order; and a flush ends a pin without harm."""
    async with playing(plugin_engine, bus, FCFS) as scene:
        names = ("other", "freed", "pinned-and-freed", "let-go", "kept")
        said = {name: await first_turn(scene, name, seed=500 + seed) for seed, name in enumerate(names)}
        retained = await scene.obeyed(
            *(Retain(program_id=name, ttl_ns=LONG_NS) for name in ("pinned-and-freed", "let-go", "kept")),
            Discard(program_id="freed"),
            Discard(program_id="pinned-and-freed"),
            Release(program_id="let-go"),
        )
        for name in ("freed", "pinned-and-freed"):
            assert (await next_turn(scene, name, said[name])).cached_tokens == 0
        kept = plugin_engine.whole_blocks(PROMPT_TOKENS)
        assert (await next_turn(scene, "other", said["other"])).cached_tokens >= kept, "only their own part goes"
        await fill(scene, seed=510)
        sample = await scene.until(PoolSampled, where=lambda event: event.at_ns > retained.at_ns)
        assert kept <= sample.retained_blocks * sample.block_tokens <= PROMPT_TOKENS + 16
        assert (await next_turn(scene, "let-go", said["let-go"])).cached_tokens == 0
        assert (await next_turn(scene, "kept", said["kept"])).cached_tokens >= kept
        await scene.obeyed(Retain(program_id="kept", ttl_ns=LONG_NS))
        await scene.flush()
        await scene.say(Release(program_id="kept"), Discard(program_id="kept"))
        assert (await next_turn(scene, "kept", said["kept"])).cached_tokens == 0
        assert plugin_engine.is_healthy()


async def test_an_idle_engine_obeys_and_ends_pins_at_once(plugin_engine: EngineServer, bus: Bus) -> None:
    async with playing(plugin_engine, bus, FCFS) as scene:
        await obeys_and_ends_pins_at_once(scene, seed=550)


@on_every_version
async def test_pins_yield_to_a_turn_that_needs_the_room(plugin_engine: EngineServer, bus: Bus) -> None:
    """MARS §4.3: pinned contexts are reclaimed before any running turn is retracted."""
    async with playing(plugin_engine, bus, FCFS) as scene:
        for number in range(3):
            await first_turn(scene, f"pinned-{number}", seed=580 + number)
            await scene.obeyed(Retain(program_id=f"pinned-{number}", ttl_ns=seconds(60)))
        large = await scene.chat("large", " ".join(["w7"] * 2000), output_tokens=1200)
        assert (large.status, large.output_tokens) == (200, 1200)
        sample = await scene.until(
            PoolSampled, where=lambda event: 0 < event.retained_blocks * event.block_tokens < 2 * PROMPT_TOKENS
        )
        assert sample.retractions == scene.heard(PoolSampled)[0].retractions


async def test_pins_yield_to_the_chunks_of_a_prefill_that_began_before_them(
    plugin_engine: EngineServer, bus: Bus
) -> None:
    """SGLang judges a long prompt's need once, before its first chunk; pins come at any time."""

    async def during_a_prefill(scene: Scene, number: int) -> int:
        """How often the pins were placed meanwhile: a machine that is busy here and not there does it seldom."""
        names = [f"late-{number}-{n}" for n in range(3)]
        for n, name in enumerate(names):
            await first_turn(scene, name, seed=6200 + 10 * number + n)
        prompt = words(630 + number, POOL_TOKENS - 400)
        large = asyncio.ensure_future(scene.chat(f"large-{number}", prompt, output_tokens=50))
        placed = 0
        while not large.done():
            await scene.say(*(Retain(program_id=name, ttl_ns=seconds(60)) for name in names))
            placed += 1
            await asyncio.sleep(0.005)
        reply = await large
        assert (reply.status, reply.output_tokens) == (200, 50)
        await scene.say(*(Release(program_id=name) for name in names))
        return placed

    async with playing(plugin_engine, bus, FCFS) as scene:
        placed, prefills = 0, 0
        while placed <= 3 and prefills < 20:
            placed = await during_a_prefill(scene, prefills)
            prefills += 1
        assert placed > 3
        assert plugin_engine.is_healthy()
