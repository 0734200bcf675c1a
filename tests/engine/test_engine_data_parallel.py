"""A server with two data-parallel ranks: each is an engine of its own, and programs stay with their context."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import pytest
from engine_client import EngineClient, Messages
from engine_load import PROMPT_TOKENS, fill, first_turn, next_turn
from engine_scene import NODE, TIMEOUT_S, Bus, Scene, playing
from engine_server import EngineServer, Launch
from engine_versions import KIND
from support.daemon_process import eventually
from tiny_model import words
from vllm_server import Experts, VllmServer

from controlplane.core.model.commands import Place, Retain
from controlplane.core.model.events import CommandApplied, CommandRejected, PoolSampled, TurnEnded
from controlplane.core.model.places import place_of
from controlplane.core.model.types import seconds

RANKS, PROGRAMS, TURNS = 2, 6, 4
OPTION = {"sglang": "--dp-size", "vllm": "--data-parallel-size"}
SERVERS = {"sglang": [KIND.server_class], "vllm": [VllmServer, Experts]}  # the last one's ranks step together
ONE_CORE_EACH = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}  # without it SGLang looks for NUMA nodes


@pytest.fixture(scope="module", params=SERVERS[KIND.name])
def ranks(launch: Launch, request: pytest.FixtureRequest) -> Iterator[EngineServer]:
    """The engine with two ranks and the plugin."""
    options = (OPTION[KIND.name], str(RANKS))
    yield from launch("ranks", *options, variables=ONE_CORE_EACH, server_class=request.param)


def places(server: EngineServer) -> list[str]:
    return [f"{NODE}/engine-{server.port}-dp{rank}" for rank in range(RANKS)]


async def heard_both(scene: Scene, server: EngineServer) -> None:
    """A daemon places turns once it knows of both ranks."""
    for place in places(server):
        await scene.until(PoolSampled, where=lambda event, place=place: place_of(event.publisher) == place)


async def grow(client: EngineClient, program_id: str, seed: int) -> list[int]:
    """A program's turns, each with all that was said before; the tokens that each found in the cache."""
    messages: Messages = [{"role": "user", "content": words(seed, PROMPT_TOKENS // 2)}]
    found = []
    for turn in range(TURNS):
        reply = await client.chat(program_id, messages)
        assert reply.status == 200
        found.append(reply.cached_tokens)
        more = {"role": "user", "content": words(seed + 1000 + turn, 40)}
        messages = [*messages, {"role": "assistant", "content": reply.text}, more]
    return found


async def where_they_ran(scene: Scene, label: str) -> dict[str, list[str]]:
    """By program: the place of each of its turns, in order."""
    await scene.until(TurnEnded, count=PROGRAMS * TURNS, where=lambda event: event.program_id.startswith(label))
    ran: defaultdict[str, list[str]] = defaultdict(list)
    for event in scene.heard(TurnEnded):
        if event.program_id.startswith(label):
            ran[event.program_id].append(place_of(event.publisher))
    return ran


def moved(ran: dict[str, list[str]]) -> tuple[int, int]:
    """Of how many turns that followed another of their program how many ran on another rank."""
    pairs = [pair for turns in ran.values() for pair in pairwise(turns)]
    return sum(one != other for one, other in pairs), len(pairs)


async def test_programs_stay_on_the_rank_that_has_their_context(ranks: EngineServer, bus: Bus) -> None:
    async with playing(ranks, bus, 'preset = "penstock"\n') as scene:
        await heard_both(scene, ranks)

        async def connected() -> bool:  # each tells of itself once a second
            health = await scene.penstock()
            assert health["plugin"]["passive_because"] == ""
            assert list(health["schedulers"]) == places(ranks)
            return all(told["emitter"]["connected"] for told in health["schedulers"].values())

        await eventually(connected, what="ranks that are on the bus", timeout_s=TIMEOUT_S)
        names = [f"stays-{number}" for number in range(PROGRAMS)]
        seeds = {name: 7000 + 10 * number for number, name in enumerate(names)}
        found = await asyncio.gather(*(grow(scene, name, seeds[name]) for name in names))
        ran = await where_they_ran(scene, "stays")
        assert moved(ran) == (0, PROGRAMS * (TURNS - 1))
        assert {place for turns in ran.values() for place in turns} == set(places(ranks)), "both have work"
        least = ranks.whole_blocks(PROMPT_TOKENS // 2)
        assert all(cached >= least for each in found for cached in each[1:])


async def test_they_go_where_the_daemons_policy_says(ranks: EngineServer, bus: Bus) -> None:
    """The baseline that sends each turn to the next rank: the gate obeys, and nothing is found again."""
    async with playing(ranks, bus, 'preset = "fcfs"\n[placement]\npolicy = "round_robin"\n') as scene:
        await heard_both(scene, ranks)
        name = "goes-round-0"
        found = []
        messages = [{"role": "user", "content": words(8000, PROMPT_TOKENS)}]
        for turn in range(3):
            reply = await scene.chat(name, messages)
            found.append(reply.cached_tokens)
            await scene.until(TurnEnded, count=turn + 1, program_id=name)
            ran = [place_of(event.publisher) for event in scene.heard(TurnEnded, program_id=name)]
            await until_told(scene, name, other_than=ran[-1])
            messages = [*messages, {"role": "assistant", "content": reply.text}, {"role": "user", "content": "w9"}]
        assert ran[0] == ran[2] != ran[1]
        assert found[1] == 0
        assert found[2] >= ranks.whole_blocks(PROMPT_TOKENS), "what the first turn left is found again"


async def until_told(scene: Scene, program_id: str, *, other_than: str) -> None:
    """The gate has obeyed the daemon's last word."""

    def obeyed(event: CommandApplied) -> bool:
        told = [one for one in scene.commands if isinstance(one, Place) and one.program_id == program_id]
        return bool(told) and told[-1].replica != other_than and event.command_id == told[-1].command_id

    await scene.until(CommandApplied, program_id=program_id, where=obeyed)


async def test_a_rank_pins_its_own_programs_which_stay_there_while_the_daemon_is_lost(
    ranks: EngineServer, bus: Bus
) -> None:
    daemon = bus.daemon()
    async with playing(ranks, bus) as scene:
        await heard_both(scene, ranks)
        messages = await first_turn(scene, "pinned", seed=9001)
        ended = await scene.until(TurnEnded, program_id="pinned")
        home = place_of(ended.publisher)
        (command_id,) = await scene.say(Retain(program_id="pinned", ttl_ns=seconds(60)))
        applied = await scene.until(CommandApplied, command_id=command_id)
        refused = await scene.until(CommandRejected, command_id=command_id)
        assert place_of(applied.publisher) == home
        assert {place_of(refused.publisher)} == set(places(ranks)) - {home}
        sample = await scene.until(PoolSampled, where=lambda event: event.retained_blocks > 0)
        assert place_of(sample.publisher) == home
        await fill(scene, seed=9100, pool_tokens=2 * ranks.pool_tokens)  # for both
        daemon.kill()
        kept = ranks.whole_blocks(PROMPT_TOKENS)
        assert (await next_turn(scene, "pinned", messages)).cached_tokens >= kept
