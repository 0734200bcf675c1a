"""The daemon's policies inside the running engine: the queue's order, whose cache goes first, smaller chunks."""

import asyncio

import pytest
from engine_client import Reply
from engine_load import PROMPT_TOKENS, first_turn, next_turn
from engine_scene import TIMEOUT_S, Bus, Scene, play, policies_told
from engine_server import POOL_TOKENS, EngineServer
from engine_versions import every_engine
from support.daemon_process import eventually
from tiny_model import words

from controlplane.core.commands import Pause, Release
from controlplane.core.events import CommandApplied, FirstToken, PoolSampled, TurnEnded, TurnSubmitted

STOCK = 'preset = "fcfs"\n'
COORDINATOR = STOCK + '[priority]\npolicy = "mlfq"\n'
ALIGNED = STOCK + '[memory]\npolicy = "opportunistic"\nshrink = false\n'
CO_SCHEDULER = STOCK + '[memory]\npolicy = "opportunistic"\n'


async def holder(scene: Scene, program_id: str, prompt_tokens: int, output_tokens: int) -> "asyncio.Task[Reply]":
    """A turn that decodes for a while, once it has begun to."""
    turn = asyncio.ensure_future(
        scene.chat(program_id, words(len(program_id), prompt_tokens), output_tokens=output_tokens)
    )
    await scene.until(FirstToken, program_id=program_id)
    return turn


@every_engine
@pytest.mark.parametrize(("config", "overtakes"), [(STOCK, False), (COORDINATOR, True)], ids=["stock", "mlfq"])
def test_a_small_turn_overtakes_a_large_one_that_finds_no_room(
    plugin_engine: EngineServer, bus: Bus, config: str, overtakes: bool
) -> None:
    """MARS §4.3: no head-of-line blocking by long prefills."""

    async def overtook(scene: Scene, number: int) -> bool | None:
        """Whether it did. None: the machine was so busy here, and not there, that it came when half was over."""
        names = [f"{name}-{overtakes}-{number}" for name in ("holder", "large", "small")]
        holding = await holder(scene, names[0], 1200, 1000)
        large = asyncio.ensure_future(scene.chat(names[1], words(710 + 10 * number, 3000)))
        await scene.until(TurnSubmitted, program_id=names[1])
        small = asyncio.ensure_future(scene.chat(names[2], words(711 + 10 * number, 60)))
        replies = await asyncio.gather(holding, large, small)
        assert [reply.status for reply in replies] == [200] * 3
        ended = await scene.until(TurnEnded, program_id=names[0])
        came = await scene.until(TurnSubmitted, program_id=names[2])
        first = [await scene.until(FirstToken, program_id=name) for name in names]
        assert first[1].at_ns > ended.at_ns, "the large one had to wait for room"
        if came.at_ns > (first[0].at_ns + ended.at_ns) // 2:
            return None
        return first[2].at_ns < ended.at_ns

    async def story(scene: Scene) -> None:
        await policies_told(plugin_engine, config)
        number, found = 0, None
        while found is None and number < 20:
            found = await overtook(scene, number)
            number += 1
        assert found is overtakes

    bus.daemon(config)
    play(story, plugin_engine, bus)


@every_engine
@pytest.mark.parametrize(("config", "kept"), [(STOCK, False), (ALIGNED, True)], ids=["stock", "aligned"])
def test_the_context_of_an_ended_program_goes_before_one_that_is_waited_for(
    plugin_engine: EngineServer, bus: Bus, config: str, kept: bool
) -> None:
    """The engine's own order is by last use alone: there the older context goes, whoever may come back."""

    async def story(scene: Scene) -> None:
        await policies_told(plugin_engine, config)
        await scene.flush()
        messages = await first_turn(scene, f"live-{kept}", seed=720)
        await first_turn(scene, f"gone-{kept}", seed=721)
        live, gone = f"live-{kept}", f"gone-{kept}"  # whoever is let go later is the more recently used
        said = await scene.say(Release(program_id=live), Pause(program_id=gone), Release(program_id=gone))
        release = said[-1]
        await scene.until(CommandApplied, command_id=release)
        rest = POOL_TOKENS - 2 * PROMPT_TOKENS - 100
        assert (await scene.chat(f"fills-{kept}", words(722, rest))).status == 200
        assert (await scene.chat(f"more-{kept}", words(723, PROMPT_TOKENS - 100))).status == 200
        reply = await next_turn(scene, f"live-{kept}", messages)
        assert (reply.cached_tokens >= plugin_engine.whole_blocks(PROMPT_TOKENS)) is kept

    bus.daemon(config)
    play(story, plugin_engine, bus)


@pytest.mark.parametrize(("config", "begins"), [(STOCK, False), (CO_SCHEDULER, True)], ids=["stock", "shrunk"])
def test_a_turn_that_does_not_fit_begins_with_what_fits(
    plugin_engine: EngineServer, bus: Bus, config: str, begins: bool
) -> None:
    """MARS §4.3: the chunk shrinks before anybody is evicted or made to wait."""

    async def story(scene: Scene) -> None:
        await policies_told(plugin_engine, config)
        await scene.flush()
        names = [f"{name}-{begins}" for name in ("decodes", "begins")]
        holding = await holder(scene, names[0], 900, 1200)
        large = asyncio.ensure_future(scene.chat(names[1], words(730, 2900)))
        submitted = await scene.until(TurnSubmitted, program_id=names[1])
        taken = POOL_TOKENS - 900 - 1200 - 1000  # more than the holder ever needs by itself

        def of_both(sample: PoolSampled) -> bool:
            free_blocks = sample.free_blocks + sample.evictable_blocks
            return sample.at_ns > submitted.at_ns and free_blocks <= taken

        replies = await asyncio.gather(holding, large)
        assert [(reply.status, reply.prompt_tokens, reply.output_tokens) for reply in replies] == [
            (200, 900, 1200),
            (200, 2900, 8),
        ]
        ended = await scene.until(TurnEnded, program_id=names[0])
        first = await scene.until(FirstToken, program_id=names[1])
        assert first.at_ns > ended.at_ns
        early = [sample for sample in scene.heard(PoolSampled) if of_both(sample) and sample.at_ns < ended.at_ns]
        assert bool(early) is begins
        assert scene.heard(PoolSampled)[-1].retractions == scene.heard(PoolSampled)[0].retractions

    bus.daemon(config)
    play(story, plugin_engine, bus)


@every_engine
def test_without_the_daemon_the_engines_own_policies_are_back(plugin_engine: EngineServer, bus: Bus) -> None:
    since = len(plugin_engine.log)

    async def story(scene: Scene) -> None:
        await policies_told(plugin_engine, COORDINATOR)
        daemon.kill()

        async def given_up() -> bool:
            return plugin_engine.log[since:].rstrip().rfind("the engine's own") > plugin_engine.log[since:].find(
                "mlfq"
            )

        await eventually(given_up, what="the engine's own policies", timeout_s=TIMEOUT_S)

    daemon = bus.daemon("lease_s = 1.0\n" + COORDINATOR)
    play(story, plugin_engine, bus)
