"""Retention at the running engine: what is kept, what is freed now, and what ends by itself."""

import asyncio

from engine_load import PROMPT_TOKENS, fill, first_turn, next_turn
from engine_scene import Bus, Scene, play, refuses_to_move
from engine_server import POOL_TOKENS, EngineServer
from engine_versions import every_engine, on_every_version
from tiny_model import words

from controlplane.core.commands import Discard, Release, Retain
from controlplane.core.events import CommandApplied, CommandRejected, PoolSampled
from controlplane.core.types import seconds


@every_engine
@on_every_version
def test_a_retained_programs_next_turn_hits_where_stock_misses(plugin_engine: EngineServer, bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        messages = await first_turn(scene, "kept", seed=500)
        (command_id,) = await scene.say(Retain(program_id="kept", ttl_ns=seconds(60)))
        await scene.until(CommandApplied, command_id=command_id, program_id="kept")
        await fill(scene, seed=510)
        sample = await scene.until(PoolSampled, where=lambda event: event.retained_blocks > 0)
        kept = plugin_engine.whole_blocks(PROMPT_TOKENS)
        assert kept <= sample.retained_blocks * sample.block_tokens <= PROMPT_TOKENS + 16
        assert (await next_turn(scene, "kept", messages)).cached_tokens >= kept

    bus.daemon()
    play(story, plugin_engine, bus)


@every_engine
def test_a_released_programs_next_turn_misses_again(plugin_engine: EngineServer, bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        messages = await first_turn(scene, "let-go", seed=520)
        retain, release = await scene.say(
            Retain(program_id="let-go", ttl_ns=seconds(60)), Release(program_id="let-go")
        )
        await scene.until(CommandApplied, command_id=retain)
        await scene.until(CommandApplied, command_id=release)
        await fill(scene, seed=530)
        assert (await next_turn(scene, "let-go", messages)).cached_tokens == 0

    bus.daemon()
    play(story, plugin_engine, bus)


@every_engine
@on_every_version
def test_a_discarded_programs_next_turn_misses_at_once(plugin_engine: EngineServer, bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        other = await first_turn(scene, "other", seed=540)
        messages = await first_turn(scene, "freed", seed=541)
        (command_id,) = await scene.say(Discard(program_id="freed"))
        await scene.until(CommandApplied, command_id=command_id)
        assert (await next_turn(scene, "freed", messages)).cached_tokens == 0
        reply = await next_turn(scene, "other", other)
        assert reply.cached_tokens >= plugin_engine.whole_blocks(PROMPT_TOKENS), "only its own part goes"

    bus.daemon()
    play(story, plugin_engine, bus)


@every_engine
def test_a_retained_program_can_be_discarded(plugin_engine: EngineServer, bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        messages = await first_turn(scene, "both", seed=550)
        retain, discard = await scene.say(Retain(program_id="both", ttl_ns=seconds(60)), Discard(program_id="both"))
        await scene.until(CommandApplied, command_id=retain)
        await scene.until(CommandApplied, command_id=discard)
        assert (await next_turn(scene, "both", messages)).cached_tokens == 0

    bus.daemon()
    play(story, plugin_engine, bus)


@every_engine
@on_every_version
def test_a_pin_ends_by_itself(plugin_engine: EngineServer, bus: Bus) -> None:
    """The engine is idle meanwhile: nothing but its own clock can end the pin."""

    async def story(scene: Scene) -> None:
        messages = await first_turn(scene, "brief", seed=560)
        (command_id,) = await scene.say(Retain(program_id="brief", ttl_ns=seconds(1.5)))
        applied = await scene.until(CommandApplied, command_id=command_id)
        expired = await scene.until(
            PoolSampled, where=lambda event: event.sequence > applied.sequence and not event.retained_blocks
        )
        assert expired.at_ns - applied.at_ns > seconds(1.4), "it was pinned in every sample before"
        assert expired.free_blocks + expired.evictable_blocks == expired.total_blocks
        await fill(scene, seed=570)
        assert (await next_turn(scene, "brief", messages)).cached_tokens == 0

    bus.daemon()
    play(story, plugin_engine, bus)


@every_engine
@on_every_version
def test_pins_yield_to_a_turn_that_needs_the_room(plugin_engine: EngineServer, bus: Bus) -> None:
    """MARS §4.3: pinned contexts are reclaimed before any running turn is retracted."""

    async def story(scene: Scene) -> None:
        for number in range(3):
            await first_turn(scene, f"pinned-{number}", seed=580 + number)
            await scene.say(Retain(program_id=f"pinned-{number}", ttl_ns=seconds(60)))
            await scene.until(CommandApplied, program_id=f"pinned-{number}")
        large = await scene.chat("large", " ".join(["w7"] * 2000), output_tokens=1200)
        assert (large.status, large.output_tokens) == (200, 1200)
        sample = await scene.until(
            PoolSampled, where=lambda event: 0 < event.retained_blocks * event.block_tokens < 2 * PROMPT_TOKENS
        )
        assert sample.retractions == scene.heard(PoolSampled)[0].retractions

    bus.daemon()
    play(story, plugin_engine, bus)


@every_engine
@on_every_version
def test_pins_yield_to_the_chunks_of_a_prefill_that_began_before_them(
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

    async def story(scene: Scene) -> None:
        placed, prefills = 0, 0
        while placed <= 3 and prefills < 20:
            placed = await during_a_prefill(scene, prefills)
            prefills += 1
        assert placed > 3
        assert plugin_engine.is_healthy()

    bus.daemon()
    play(story, plugin_engine, bus)


@every_engine
def test_pins_stay_within_their_budget(plugin_engine: EngineServer, bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        for number in range(4):
            await first_turn(scene, f"budget-{number}", seed=590 + number)
        answers = await scene.say(*(Retain(program_id=f"budget-{n}", ttl_ns=seconds(60)) for n in range(4)))
        for command_id in answers[:3]:
            await scene.until(CommandApplied, command_id=command_id)
        rejected = await scene.until(CommandRejected, command_id=answers[3])
        assert "budget" in rejected.reason

    bus.daemon()
    play(story, plugin_engine, bus)


def test_what_cannot_be_done_here_is_rejected_with_its_reason(plugin_engine: EngineServer, bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        await first_turn(scene, "known", seed=600)
        await refuses_to_move(scene, "known", "host memory is off: start SGLang with --enable-hierarchical-cache")

    bus.daemon()
    play(story, plugin_engine, bus)


@every_engine
@on_every_version
def test_a_flush_of_the_cache_with_a_live_pin_does_no_harm(plugin_engine: EngineServer, bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        messages = await first_turn(scene, "flushed", seed=610)
        (retain,) = await scene.say(Retain(program_id="flushed", ttl_ns=seconds(60)))
        await scene.until(CommandApplied, command_id=retain)
        await scene.flush()
        await scene.say(Release(program_id="flushed"), Discard(program_id="flushed"))
        assert (await next_turn(scene, "flushed", messages)).cached_tokens == 0
        assert plugin_engine.is_healthy()

    bus.daemon()
    play(story, plugin_engine, bus)
