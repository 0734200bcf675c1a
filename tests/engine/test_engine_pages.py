"""Pages of 16 tokens: an engine of its own, whose blocks are pages."""

from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from engine_load import PROMPT_TOKENS, fill, first_turn, next_turn
from engine_scene import NODE, Bus, Scene, opened, play
from engine_server import EngineServer, serving
from engine_versions import on_every_version

from controlplane.core.commands import Discard, Retain
from controlplane.core.events import CommandApplied, FirstToken, PoolSampled, TurnEnded, TurnSubmitted
from controlplane.core.types import seconds

PAGE_TOKENS = 16
KEPT_TOKENS = PROMPT_TOKENS // PAGE_TOKENS * PAGE_TOKENS  # only whole pages stay in the cache
TURN_PAGES = ceil((PROMPT_TOKENS + 8) / PAGE_TOKENS)  # of a first turn, with its output


@pytest.fixture(scope="module")
def paged_engine(
    engine_env: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineServer]:
    folder = tmp_path_factory.mktemp("paged")
    server = EngineServer(
        folder,
        environment=engine_env,
        model=tiny_model,
        plugins=("penstock",),
        variables={"PENSTOCK_NODE": NODE, "PENSTOCK_STATE_DIR": str(folder)},
        arguments=("--page-size", str(PAGE_TOKENS)),
    )
    yield from serving(server)


@pytest.fixture
def paged_bus(nats_server: Any, paged_engine: EngineServer, tmp_path: Path) -> Iterator[Bus]:
    yield from opened(Bus(nats_server, paged_engine.log_path.parent, tmp_path))


@on_every_version
def test_the_blocks_of_events_are_pages(paged_engine: EngineServer, paged_bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        messages = await first_turn(scene, "paged", seed=900)
        submitted = await scene.until(TurnSubmitted, program_id="paged")
        assert (submitted.prompt_tokens, submitted.projected_blocks) == (PROMPT_TOKENS, TURN_PAGES)
        await scene.until(TurnEnded, program_id="paged")
        reply = await next_turn(scene, "paged", messages)
        ended = await scene.until(TurnEnded, 2, program_id="paged")
        first = await scene.until(FirstToken, 2, program_id="paged")
        assert first.cached_tokens == ended.cached_tokens == reply.cached_tokens
        assert reply.cached_tokens >= KEPT_TOKENS
        assert reply.cached_tokens % PAGE_TOKENS == 0
        heard = len(scene.heard(PoolSampled))
        sample = await scene.until(PoolSampled, heard + 1, where=lambda event: event.turns_running == 0)
        assert (sample.block_tokens, sample.total_blocks) == (PAGE_TOKENS, paged_engine.pool_tokens // PAGE_TOKENS)
        assert sample.free_blocks + sample.evictable_blocks == sample.total_blocks
        assert sample.evictable_blocks >= KEPT_TOKENS // PAGE_TOKENS

    paged_bus.daemon()
    play(story, paged_engine, paged_bus)


@on_every_version
def test_a_retained_programs_next_turn_hits_and_a_discarded_ones_misses(
    paged_engine: EngineServer, paged_bus: Bus
) -> None:
    async def story(scene: Scene) -> None:
        kept = await first_turn(scene, "kept", seed=910)
        freed = await first_turn(scene, "freed", seed=911)
        other = await first_turn(scene, "other", seed=912)
        retain, discard = await scene.say(
            Retain(program_id="kept", ttl_ns=seconds(600)), Discard(program_id="freed")
        )
        await scene.until(CommandApplied, command_id=retain)
        await scene.until(CommandApplied, command_id=discard)
        assert (await next_turn(scene, "freed", freed)).cached_tokens == 0
        assert (await next_turn(scene, "other", other)).cached_tokens >= KEPT_TOKENS, "only its own part goes"
        await fill(scene, seed=920)
        sample = await scene.until(PoolSampled, where=lambda event: event.retained_blocks > 0)
        assert TURN_PAGES - 1 <= sample.retained_blocks <= TURN_PAGES
        assert (await next_turn(scene, "kept", kept)).cached_tokens >= KEPT_TOKENS
        assert (await next_turn(scene, "other", other)).cached_tokens == 0, "others filled the pool"

    paged_bus.daemon()
    play(story, paged_engine, paged_bus)
