"""Smaller chunks change when a turn is computed, never what it answers: many turns at once in too small a pool."""

import asyncio
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_client import Reply
from engine_load import first_turn
from engine_scene import NODE, Bus, Scene, opened, play, policies_told
from engine_server import EngineServer, serving
from support.daemon_process import eventually
from tiny_model import words

from controlplane.core.events import FirstToken, TurnEnded, TurnSubmitted

CHUNK_TOKENS = 512
MARS_ENGINE = 'preset = "fcfs"\n[priority]\npolicy = "mlfq"\n[memory]\npolicy = "opportunistic"\n'
TURNS = 36
AT_ONCE = 10
COMPARED = 3  # of a turn's words, at most: a prefill that went wrong shows in the first
ALONE_TOKENS = 8  # some of which are no words


@pytest.fixture(scope="module")
def chunk_state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def chunk_engine(
    engine_env: Path, tiny_model: Path, chunk_state_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineServer]:
    """SGLang with the plugin, and chunks that most prompts here exceed."""
    server = EngineServer(
        tmp_path_factory.mktemp("chunks"),
        environment=engine_env,
        model=tiny_model,
        plugins=("penstock",),
        variables={"PENSTOCK_NODE": NODE, "PENSTOCK_STATE_DIR": str(chunk_state_dir)},
        arguments=("--chunked-prefill-size", str(CHUNK_TOKENS)),
    )
    yield from serving(server)


@pytest.fixture
def chunk_bus(nats_server: Any, chunk_state_dir: Path, tmp_path: Path) -> Iterator[Bus]:
    yield from opened(Bus(nats_server, chunk_state_dir, tmp_path))


def test_every_turn_answers_what_it_answers_alone(chunk_engine: EngineServer, chunk_bus: Bus) -> None:
    """Long outputs fill the pool, so that prefills begin in part, wait, and have others overtake them."""
    draw = random.Random(5)
    sizes = [
        (draw.randint(600, 2400), draw.randint(4, 40)) if draw.random() < 0.5 else (draw.randint(20, 300), 300)
        for _ in range(TURNS)
    ]

    async def story(scene: Scene) -> None:
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

    chunk_bus.daemon(MARS_ENGINE)
    play(story, chunk_engine, chunk_bus)


def test_who_was_just_prefilled_can_reach_its_last_token_beside_a_prefill_in_parts(
    chunk_engine: EngineServer, chunk_bus: Bus
) -> None:
    """The second is too large to fit beside it, and is first asked about when nothing decodes yet."""

    async def story(scene: Scene) -> None:
        await policies_told(chunk_engine, MARS_ENGINE)
        await scene.flush()
        first = asyncio.ensure_future(scene.chat("first", words(980, 3700), output_tokens=200))
        await scene.until(TurnSubmitted, program_id="first")
        second = asyncio.ensure_future(scene.chat("second", words(981, 2700)))
        replies = await asyncio.gather(first, second)
        assert [reply.status for reply in replies] == [200, 200]
        ended = await scene.until(TurnEnded, program_id="first")
        assert (ended.ok, ended.output_tokens) == (True, 200)

    chunk_bus.daemon(MARS_ENGINE)
    play(story, chunk_engine, chunk_bus)


def test_a_prefill_that_waits_in_the_middle_keeps_its_first_token(
    chunk_engine: EngineServer, chunk_bus: Bus
) -> None:
    """It found no room to go on, and small turns are prefilled meanwhile."""

    async def story(scene: Scene) -> None:
        await policies_told(chunk_engine, MARS_ENGINE)
        await scene.flush()
        for number in range(3):
            await first_turn(scene, f"waited-for-{number}", seed=950 + number)
        holding = asyncio.ensure_future(scene.chat("holds", words(960, 600), output_tokens=1400))
        await scene.until(FirstToken, program_id="holds")
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

    chunk_bus.daemon(MARS_ENGINE)
    play(story, chunk_engine, chunk_bus)
