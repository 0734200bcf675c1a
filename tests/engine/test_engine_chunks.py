"""Smaller chunks change when a turn is computed, never what it answers: many turns at once in too small a pool.

The engine has chunks that most prompts exceed. It never sleeps, as SGLang does without a flag; and last of all it
is the second engine on a node.
"""

import asyncio
import random
import re
from collections.abc import Iterator

import pytest
from engine_client import EngineClient, Reply
from engine_load import decoding, first_turn, obeys_and_ends_pins_at_once
from engine_scene import FCFS, NODE, Bus, playing, policies_told
from engine_server import EngineServer, Launch
from engine_versions import on
from support.daemon_process import eventually
from tiny_model import words

from controlplane.core.model.events import FirstToken, PoolSampled, TurnEnded, TurnSubmitted
from controlplane.core.model.places import place_of

pytestmark = on("sglang")

CHUNK_TOKENS = 512
MARS_ENGINE = 'preset = "fcfs"\n[priority]\npolicy = "mlfq"\n[memory]\npolicy = "opportunistic"\n'
TURNS = 36
AT_ONCE = 10
COMPARED = 3  # of a turn's words, at most: a prefill that went wrong shows in the first
ALONE_TOKENS = 8  # some of which are no words


@pytest.fixture(scope="module")
def chunk_engine(launch: Launch) -> Iterator[EngineServer]:
    yield from launch("chunks", "--chunked-prefill-size", str(CHUNK_TOKENS), sleeps=False)


async def test_every_turn_answers_what_it_answers_alone(chunk_engine: EngineServer, bus: Bus) -> None:
    """Long outputs fill the pool, so that prefills begin in part, wait, and have others overtake them."""
    draw = random.Random(5)
    sizes = [
        (draw.randint(600, 2400), draw.randint(4, 40)) if draw.random() < 0.5 else (draw.randint(20, 300), 300)
        for _ in range(TURNS)
    ]
    async with playing(chunk_engine, bus, MARS_ENGINE) as scene:

        async def turn(number: int, suffix: str, output_tokens: int) -> Reply:
            text = words(900 + number, sizes[number][0])
            return await scene.chat(f"turn-{number}-{suffix}", text, output_tokens=output_tokens)

        async def one_of_many(number: int) -> Reply:
            async with limit:
                return await turn(number, "together", sizes[number][1])

        await policies_told(chunk_engine, MARS_ENGINE)
        await scene.flush()
        limit = asyncio.Semaphore(AT_ONCE)
        together = await asyncio.gather(*(one_of_many(number) for number in range(TURNS)))
        await scene.flush()
        alone = [await turn(number, "alone", min(ALONE_TOKENS, sizes[number][1])) for number in range(TURNS)]
        assert [reply.status for reply in (*together, *alone)] == [200] * (2 * TURNS)
        said = [(many.text.split(), one.text.split()[:COMPARED]) for many, one in zip(together, alone, strict=True)]
        assert sum(len(words_alone) == COMPARED for _, words_alone in said) > TURNS // 2
        wrong = [
            (sizes[number], many[:COMPARED], one)
            for number, (many, one) in enumerate(said)
            if many[: len(one)] != one
        ]
        assert not wrong


async def test_who_was_just_prefilled_can_reach_its_last_token_beside_a_prefill_in_parts(
    chunk_engine: EngineServer, bus: Bus
) -> None:
    """The second is too large to fit beside it, and is first asked about when nothing decodes yet."""
    async with playing(chunk_engine, bus, MARS_ENGINE) as scene:
        await policies_told(chunk_engine, MARS_ENGINE)
        await scene.flush()
        first = asyncio.ensure_future(scene.chat("first", words(980, 3700), output_tokens=200))
        await scene.until(TurnSubmitted, program_id="first")
        second = asyncio.ensure_future(scene.chat("second", words(981, 2700)))
        replies = await asyncio.gather(first, second)
        assert [reply.status for reply in replies] == [200, 200]
        ended = await scene.until(TurnEnded, program_id="first")
        assert (ended.ok, ended.output_tokens) == (True, 200)


async def test_a_prefill_that_waits_in_the_middle_keeps_its_first_token(
    chunk_engine: EngineServer, bus: Bus
) -> None:
    """It found no room to go on, and small turns are prefilled meanwhile."""
    async with playing(chunk_engine, bus, MARS_ENGINE) as scene:
        await policies_told(chunk_engine, MARS_ENGINE)
        await scene.flush()
        for number in range(3):
            await first_turn(scene, f"waited-for-{number}", seed=950 + number)
        holding = await decoding(scene, "holds", 960, 600, 1400)
        said = len(chunk_engine.log)
        large = asyncio.ensure_future(scene.chat("large", words(961, 2700)))

        async def waits_in_the_middle() -> bool:
            """Its first chunk holds what was free beside the holder, whose answer lasts for a few seconds."""
            batches = re.findall(r"Prefill batch, .*#pending-token: (\d+)", chunk_engine.log[said:])
            return any(0 < int(pending) < 2700 for pending in batches)

        await eventually(waits_in_the_middle, what="prefill that began in part", every_s=0.05)
        small = [await scene.chat(f"small-{number}", words(970 + number, 40)) for number in range(4)]
        ended = await scene.until(TurnEnded, program_id="small-3")
        assert not holding.done()
        replies = await asyncio.gather(holding, large)
        assert [reply.status for reply in (*small, *replies)] == [200] * 6
        first = await scene.until(FirstToken, program_id="large")
        assert first.at_ns > ended.at_ns, "it waited while the small ones ran"
        await scene.flush()
        alone = await scene.chat("alone", words(961, 2700))
        assert replies[1].text == alone.text


async def test_an_engine_that_never_sleeps_obeys_and_lets_go_at_once(chunk_engine: EngineServer, bus: Bus) -> None:
    async with playing(chunk_engine, bus, FCFS) as scene:
        await obeys_and_ends_pins_at_once(scene, seed=990)


async def test_both_are_served_and_the_first_goes_on_when_the_second_has_gone(
    plugin_engine: EngineServer, chunk_engine: EngineServer, bus: Bus
) -> None:
    """A rolling restart, or two engines on a host: the newcomer takes nothing from who is there."""

    async def turns(client: EngineClient, label: str) -> None:
        for _ in range(2):
            names = [f"{label}-{number}" for number in range(3)]
            replies = await asyncio.gather(*(client.chat(name, f"{name} says it") for name in names))
            assert [reply.status for reply in replies] == [200] * 3

    engines = {"at-first": plugin_engine, "at-second": chunk_engine}
    async with playing(plugin_engine, bus, 'preset = "mars"\n') as scene:
        other = EngineClient(chunk_engine, scene._http)
        before = await other.boot_id()
        bus.announce(chunk_engine)
        await other.governed_anew(before)
        places = {label: f"{NODE}/engine-{engine.port}" for label, engine in engines.items()}
        for place in places.values():
            await scene.until(PoolSampled, where=lambda event, place=place: place_of(event.publisher) == place)
        await asyncio.gather(turns(scene, "at-first"), turns(other, "at-second"))
        for label, place in places.items():
            ended = [await scene.until(TurnEnded, program_id=f"{label}-{number}") for number in range(3)]
            assert {place_of(each.publisher) for each in ended} == {place}
        await asyncio.to_thread(chunk_engine.kill)
        await turns(scene, "after")
