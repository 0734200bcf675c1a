"""MORI's labels inside the running engine: who is evicted, and who is scheduled first."""

import asyncio

import pytest
from engine_client import Messages
from engine_load import PROMPT_TOKENS, first_turn, next_turn
from engine_scene import Bus, Scene, play, policies_told
from engine_server import POOL_TOKENS, EngineServer
from tiny_model import words

from controlplane.core.commands import Admit, Command, Label
from controlplane.core.events import CommandApplied, FirstToken, TurnSubmitted

STOCK = 'preset = "fcfs"\n'
TYPED = STOCK + '[priority]\npolicy = "typed"\n[memory]\npolicy = "typed"\n'
BOTH = pytest.mark.parametrize("config", [STOCK, TYPED], ids=["stock", "mori"])


async def obeyed(scene: Scene, command: Command) -> None:
    (command_id,) = await scene.say(command)
    await scene.until(CommandApplied, command_id=command_id)


async def three_contexts(scene: Scene, mark: str) -> dict[str, Messages]:
    """Three programs' contexts, in the order in which they were used."""
    await scene.flush()
    return {
        f"{name}-{mark}": await first_turn(scene, f"{name}-{mark}", seed) for seed, name in enumerate("abc", 850)
    }


async def press(scene: Scene, mark: str) -> None:
    """Another program's prompt, which finds room only when one context goes."""
    tokens = POOL_TOKENS - 3 * PROMPT_TOKENS + PROMPT_TOKENS // 2
    assert (await scene.chat(f"press-{mark}", words(860, tokens))).status == 200


@BOTH
def test_idle_programs_are_evicted_before_busy_ones_however_long_ago_those_were_used(
    plugin_engine: EngineServer, bus: Bus, config: str
) -> None:
    """MORI §4.3.2. The stock engine evicts the one that was used least recently."""
    typed = config == TYPED

    async def story(scene: Scene) -> None:
        await policies_told(plugin_engine, config)
        contexts = await three_contexts(scene, f"evict-{typed}")
        oldest, _, latest = contexts
        await obeyed(scene, Label(program_id=latest, label="idle"))
        await press(scene, f"evict-{typed}")
        assert ((await next_turn(scene, oldest, contexts[oldest])).cached_tokens >= PROMPT_TOKENS) is typed

    bus.daemon(config)
    play(story, plugin_engine, bus)


def test_whoever_is_let_in_again_is_busy(plugin_engine: EngineServer, bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        await policies_told(plugin_engine, TYPED)
        contexts = await three_contexts(scene, "again")
        oldest, _, latest = contexts
        await obeyed(scene, Label(program_id=latest, label="idle"))
        await scene.say(Admit(program_id=latest))
        await obeyed(scene, Label(program_id=oldest, label="inactive"))
        await press(scene, "again")
        assert (await next_turn(scene, latest, contexts[latest])).cached_tokens >= PROMPT_TOKENS

    bus.daemon(TYPED)
    play(story, plugin_engine, bus)


@BOTH
def test_busy_programs_are_scheduled_before_idle_ones(plugin_engine: EngineServer, bus: Bus, config: str) -> None:
    typed = config == TYPED

    async def story(scene: Scene) -> None:
        await policies_told(plugin_engine, config)
        await scene.flush()
        names = [f"{name}-{typed}" for name in ("labelled-idle", "busy", "holds-the-pool")]
        holder = asyncio.ensure_future(scene.chat(names[2], words(870, 1200), output_tokens=900))
        await scene.until(FirstToken, program_id=names[2])
        turns = []
        for number, name in enumerate(names[:2]):
            turns.append(asyncio.ensure_future(scene.chat(name, words(871 + number, 2700), output_tokens=20)))
            await scene.until(TurnSubmitted, program_id=name)
        await obeyed(scene, Label(program_id=names[0], label="idle"))  # it was let in, which made it busy
        await asyncio.gather(holder, *turns)
        idle, busy = [await scene.until(FirstToken, program_id=name) for name in names[:2]]
        assert (busy.at_ns < idle.at_ns) is typed

    bus.daemon(config)
    play(story, plugin_engine, bus)
