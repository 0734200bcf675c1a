"""The daemon's policies inside the running engine: the queue's order, whose cache goes first, smaller chunks.

What an engine's own order would do is seen in the same run: who goes on waiting, and whose context is gone.
"""

import asyncio

from engine_client import Messages
from engine_load import PROMPT_TOKENS, decoding, first_turn, next_turn
from engine_scene import FCFS, Bus, Scene, playing, policies_told
from engine_server import POOL_TOKENS, EngineServer
from engine_versions import on
from tiny_model import words

from controlplane.core.model.commands import Pause, Release, Retain
from controlplane.core.model.events import FirstToken, PoolSampled, TurnEnded, TurnSubmitted
from controlplane.core.model.types import seconds

COORDINATOR = FCFS + '[priority]\npolicy = "mlfq"\n'
ALIGNED = FCFS + '[memory]\npolicy = "opportunistic"\nshrink = false\n'
CO_SCHEDULER = FCFS + '[memory]\npolicy = "opportunistic"\n'
CONTINUUM = FCFS + '[priority]\npolicy = "ttl_first"\n[memory]\npolicy = "lru"\nkeep_pins = true\n'


async def test_a_small_turn_overtakes_a_large_one_that_finds_no_room(plugin_engine: EngineServer, bus: Bus) -> None:
    """MARS §4.3: no head-of-line blocking by long prefills."""

    async def overtook(scene: Scene, number: int) -> bool | None:
        """Whether it did. None: the machine was so busy here, and not there, that it came when half was over."""
        names = [f"{name}-{number}" for name in ("holder", "large", "small")]
        holding = await decoding(scene, names[0], 700 + number, 1200, 1000)
        large = asyncio.ensure_future(scene.chat(names[1], words(7100 + number, 3000)))
        await scene.until(TurnSubmitted, program_id=names[1])
        small = asyncio.ensure_future(scene.chat(names[2], words(7200 + number, 60)))
        replies = await asyncio.gather(holding, large, small)
        assert [reply.status for reply in replies] == [200] * 3
        ended = await scene.until(TurnEnded, program_id=names[0])
        came = await scene.until(TurnSubmitted, program_id=names[2])
        first = [await scene.until(FirstToken, program_id=name) for name in names]
        assert first[1].at_ns > ended.at_ns, "the large one had to wait for room"
        if came.at_ns > (first[0].at_ns + ended.at_ns) // 2:
            return None
        return first[2].at_ns < ended.at_ns

    async with playing(plugin_engine, bus, COORDINATOR) as scene:
        await policies_told(plugin_engine, COORDINATOR)
        number, found = 0, None
        while found is None and number < 20:
            found = await overtook(scene, number)
            number += 1
        assert found


async def test_the_context_of_an_ended_program_goes_before_one_that_is_waited_for(
    plugin_engine: EngineServer, bus: Bus
) -> None:
    """The engine's own order is by last use alone: there the older context goes, whoever may come back."""
    async with playing(plugin_engine, bus, ALIGNED) as scene:
        await policies_told(plugin_engine, ALIGNED)
        await scene.flush()
        messages = await first_turn(scene, "live", seed=720)
        ended = await first_turn(scene, "gone", seed=721)
        # Whoever is let go later is the more recently used.
        said = await scene.say(Release(program_id="live"), Pause(program_id="gone"), Release(program_id="gone"))
        await scene.answer(said[-1])
        rest = POOL_TOKENS - 2 * PROMPT_TOKENS - 100
        assert (await scene.chat("fills", words(722, rest))).status == 200
        assert (await scene.chat("more", words(723, PROMPT_TOKENS - 100))).status == 200
        kept = plugin_engine.whole_blocks(PROMPT_TOKENS)
        assert (await next_turn(scene, "live", messages)).cached_tokens >= kept
        assert (await next_turn(scene, "", ended)).cached_tokens < kept


@on("sglang")
async def test_a_turn_that_does_not_fit_begins_with_what_fits(plugin_engine: EngineServer, bus: Bus) -> None:
    """MARS §4.3: the chunk shrinks before anybody is evicted or made to wait."""
    async with playing(plugin_engine, bus, CO_SCHEDULER) as scene:
        await policies_told(plugin_engine, CO_SCHEDULER)
        await scene.flush()
        holding = await decoding(scene, "decodes", 730, 900, 1200)
        large = asyncio.ensure_future(scene.chat("begins", words(731, 2900)))
        submitted = await scene.until(TurnSubmitted, program_id="begins")
        replies = await asyncio.gather(holding, large)
        assert [(reply.status, reply.prompt_tokens, reply.output_tokens) for reply in replies] == [
            (200, 900, 1200),
            (200, 2900, 8),
        ]
        ended = await scene.until(TurnEnded, program_id="decodes")
        first = await scene.until(FirstToken, program_id="begins")
        assert first.at_ns > ended.at_ns, "it did not fit as a whole"
        most_free = POOL_TOKENS - 900 - 1200 - 1000  # with more taken than the holder ever needs by itself
        samples = [sample for sample in scene.heard(PoolSampled) if submitted.at_ns < sample.at_ns < ended.at_ns]
        assert min(sample.free_blocks + sample.evictable_blocks for sample in samples) <= most_free
        assert scene.heard(PoolSampled)[-1].retractions == scene.heard(PoolSampled)[0].retractions


async def pinned(scene: Scene, program_id: str, seed: int, tokens: int = PROMPT_TOKENS) -> Messages:
    """A program whose first turn ended, and whose context is pinned for a minute; its messages."""
    messages = await first_turn(scene, program_id, seed, tokens)
    await scene.obeyed(Retain(program_id=program_id, ttl_ns=seconds(60)))
    return messages


@on("sglang")
async def test_a_turn_waits_for_kept_pins_and_a_deadlock_of_them_is_broken_from_the_latest_program_on(
    plugin_engine: EngineServer, bus: Bus
) -> None:
    """Continuum §5.2. Elsewhere a pin goes as soon as a turn needs its room; here once nothing else can begin."""
    async with playing(plugin_engine, bus, CONTINUUM) as scene:
        await policies_told(plugin_engine, CONTINUUM)
        await scene.flush()
        messages = await pinned(scene, "pinned", seed=800)
        holder = await decoding(scene, "holder", 801, 600, 900)
        large = asyncio.ensure_future(scene.chat("large", words(802, 2500)))
        await asyncio.gather(holder, large)
        ended = await scene.until(TurnEnded, program_id="holder")
        assert (await scene.until(FirstToken, program_id="large")).at_ns > ended.at_ns
        assert (await next_turn(scene, "pinned", messages)).cached_tokens >= PROMPT_TOKENS
        await scene.obeyed(Release(program_id="pinned"))
        await scene.flush()
        first = await pinned(scene, "first-of-two", seed=820, tokens=900)
        second = await pinned(scene, "second-of-two", seed=821, tokens=900)
        assert (await scene.chat("larger", words(822, 2800))).status == 200
        assert (await next_turn(scene, "first-of-two", first)).cached_tokens >= 900
        assert (await next_turn(scene, "second-of-two", second)).cached_tokens < 900
