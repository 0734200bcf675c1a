"""Demote, Prefetch and Discard where SGLang keeps contexts in host memory as well (HiCache)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_client import Messages, Reply
from engine_load import PROMPT_TOKENS, fill, first_turn
from engine_scene import TIMEOUT_S, Bus, Scene, play, policies_told
from engine_server import POOL_TOKENS, EngineServer
from support.daemon_process import eventually
from tiny_model import words

from controlplane.core.commands import Command, Demote, Discard, Label, Prefetch, Retain
from controlplane.core.events import (
    CommandApplied,
    CommandRejected,
    Event,
    FirstToken,
    PoolSampled,
    TurnEnded,
)
from controlplane.core.types import seconds

on_every_policy = pytest.mark.parametrize("write_policy", ["write_through", "write_back"], indirect=True)


@pytest.fixture
def host_bus(nats_server: Any, host_state_dir: Path, tmp_path: Path) -> Iterator[Bus]:
    made = Bus(nats_server, host_state_dir, tmp_path)
    made.daemon()
    try:
        yield made
    finally:
        made.close()


async def _first_turn(scene: Scene, program_id: str, seed: int) -> Messages:
    """A first turn that the scheduler has told of: it hears commands, too."""
    messages = await first_turn(scene, program_id, seed)
    await scene.until(TurnEnded, program_id=program_id)
    return messages


async def _next_turn(scene: Scene, program_id: str, messages: Messages) -> tuple[Reply, int, int]:
    """A next turn, and how many of its tokens were cached on the device and on the host."""
    messages = [*messages, {"role": "user", "content": "w3 w4 w5"}]
    reply = await scene.chat(program_id, messages, return_cached_tokens_details=True)
    assert reply.status == 200
    cached = _cached(reply)
    return reply, cached["device"], cached["host"]


def _cached(reply: Reply) -> dict[str, int]:
    """Tokens by where they were found; a reply without any says nothing of it."""
    said = reply.body.get("sglext") or {"cached_tokens_details": {"device": 0, "host": 0}}
    details: dict[str, int] = said["cached_tokens_details"]
    return details


async def _obeyed(scene: Scene, command: Command) -> CommandApplied:
    (command_id,) = await scene.say(command)
    answer = await _answer(scene, command_id)
    assert isinstance(answer, CommandApplied), answer
    return answer


async def _refusal(scene: Scene, command: Command) -> str:
    (command_id,) = await scene.say(command)
    answer = await _answer(scene, command_id)
    assert isinstance(answer, CommandRejected), answer
    return answer.reason


async def _answer(scene: Scene, command_id: int) -> Event:
    """Whether it was applied or rejected."""

    async def look() -> Event | None:
        answers = [*scene.heard(CommandApplied, command_id=command_id)]
        answers += scene.heard(CommandRejected, command_id=command_id)
        return answers[0] if answers else None

    answer = await eventually(look, what=f"answer to command {command_id}", timeout_s=TIMEOUT_S)
    assert isinstance(answer, Event)
    return answer


async def _sample(scene: Scene, after: Event) -> PoolSampled:
    """The pool once the engine had told of ``after``."""
    sample = await scene.until(PoolSampled, where=lambda event: event.sequence > after.sequence)
    assert isinstance(sample, PoolSampled)
    return sample


@on_every_policy
def test_a_demoted_context_leaves_the_device_and_hits_from_the_host(
    host_engine: EngineServer, host_bus: Bus
) -> None:
    async def story(scene: Scene) -> None:
        messages = await _first_turn(scene, "moved", seed=700)
        (ended,) = scene.heard(TurnEnded, program_id="moved")
        before = await _sample(scene, ended)
        assert before.host_total_blocks > POOL_TOKENS
        after = await _sample(scene, await _obeyed(scene, Demote(program_id="moved")))
        assert after.free_blocks >= before.free_blocks + PROMPT_TOKENS
        assert after.host_used_blocks >= PROMPT_TOKENS
        _, device, host = await _next_turn(scene, "moved", messages)
        assert (device, host >= PROMPT_TOKENS) == (0, True)
        await scene.until(FirstToken, 2, program_id="moved")
        assert [told.loaded_tokens for told in scene.heard(FirstToken, program_id="moved")] == [0, host]

    play(story, host_engine, host_bus)


@on_every_policy
def test_a_prefetched_context_hits_on_the_device(host_engine: EngineServer, host_bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        messages = await _first_turn(scene, "fetched", seed=710)
        await _obeyed(scene, Demote(program_id="fetched"))
        await _obeyed(scene, Prefetch(program_id="fetched"))
        _, device, host = await _next_turn(scene, "fetched", messages)
        assert (device >= PROMPT_TOKENS, host) == (True, 0)

    play(story, host_engine, host_bus)


@on_every_policy
def test_a_context_that_was_moved_says_the_same_as_one_that_was_not(
    host_engine: EngineServer, host_bus: Bus
) -> None:
    """The moved tokens come back where they were: the next turn's words do not change."""

    async def story(scene: Scene) -> None:
        messages = await _first_turn(scene, "told", seed=720)
        unmoved, device, _ = await _next_turn(scene, "told", messages)
        assert device >= PROMPT_TOKENS
        await _obeyed(scene, Demote(program_id="told"))
        moved, _, host = await _next_turn(scene, "told", messages)
        assert (moved.text, host >= PROMPT_TOKENS) == (unmoved.text, True)
        await _obeyed(scene, Demote(program_id="told"))
        await _obeyed(scene, Prefetch(program_id="told"))
        fetched, device, _ = await _next_turn(scene, "told", messages)
        assert (fetched.text, device >= PROMPT_TOKENS) == (unmoved.text, True)

    play(story, host_engine, host_bus)


def test_what_others_share_stays_on_the_device(host_engine: EngineServer, host_bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        shared = words(730, 300)
        for name, seed in (("one", 731), ("two", 732)):
            assert (await scene.chat(name, f"{shared} {words(seed, 300)}")).status == 200
            await scene.until(TurnEnded, program_id=name)
        for name in ("one", "two"):
            await _obeyed(scene, Demote(program_id=name))
        third = await scene.chat("three", f"{shared} {words(733, 20)}", return_cached_tokens_details=True)
        cached = _cached(third)
        assert (cached["device"], cached["host"]) == (300, 0)

    play(story, host_engine, host_bus)


def test_a_pinned_context_can_be_demoted(host_engine: EngineServer, host_bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        messages = await _first_turn(scene, "pinned", seed=740)
        await _obeyed(scene, Retain(program_id="pinned", ttl_ns=seconds(60)))
        sample = await _sample(scene, await _obeyed(scene, Demote(program_id="pinned")))
        assert sample.retained_blocks == 0
        _, device, host = await _next_turn(scene, "pinned", messages)
        assert (device, host >= PROMPT_TOKENS) == (0, True)

    play(story, host_engine, host_bus)


@on_every_policy
def test_a_discarded_context_leaves_the_device(host_engine: EngineServer, host_bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        messages = await _first_turn(scene, "freed", seed=750)
        await _obeyed(scene, Discard(program_id="freed"))
        _, device, _ = await _next_turn(scene, "freed", messages)
        assert device == 0

    play(story, host_engine, host_bus)


def test_what_cannot_be_moved_is_rejected_with_its_reason(host_engine: EngineServer, host_bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        await _first_turn(scene, "here", seed=760)
        assert "no turn of it ended here" in await _refusal(scene, Demote(program_id="stranger"))
        assert "on the host" in await _refusal(scene, Prefetch(program_id="here"))
        await _obeyed(scene, Demote(program_id="here"))
        assert "on the device" in await _refusal(scene, Demote(program_id="here"))

    play(story, host_engine, host_bus)


@on_every_policy
def test_under_pressure_moves_and_turns_go_on_together(host_engine: EngineServer, host_bus: Bus) -> None:
    """Loads of ours and of the engine's own, evictions and moves at once: nothing fails and nothing is lost."""

    async def story(scene: Scene) -> None:
        histories = {f"busy-{n}": await _first_turn(scene, f"busy-{n}", seed=770 + n) for n in range(4)}
        for round_number in range(3):
            await scene.say(*(Demote(program_id=name) for name in histories))
            await fill(scene, seed=780 + 20 * round_number)
            said = await scene.say(*(Prefetch(program_id=name) for name in histories))
            for name, messages in histories.items():
                _, device, host = await _next_turn(scene, name, messages)
                assert device + host >= PROMPT_TOKENS
            for command_id in said:
                await _answer(scene, command_id)
        assert host_engine.is_healthy()

    play(story, host_engine, host_bus)


# Labels (MORI §4.3.2)

_STOCK = 'preset = "fcfs"\n'
_TYPED = _STOCK + '[priority]\npolicy = "typed"\n[memory]\npolicy = "typed"\n'
_by_label = pytest.mark.parametrize("config", [_STOCK, _TYPED], ids=["stock", "mori"])


@pytest.fixture
def labelling_bus(nats_server: Any, host_state_dir: Path, tmp_path: Path, config: str) -> Iterator[Bus]:
    made = Bus(nats_server, host_state_dir, tmp_path)
    made.daemon(config)
    try:
        yield made
    finally:
        made.close()


@_by_label
def test_idle_contexts_go_to_the_host_before_busy_ones(
    host_engine: EngineServer, labelling_bus: Bus, config: str
) -> None:
    typed = config == _TYPED

    async def story(scene: Scene) -> None:
        await policies_told(host_engine, config)
        await scene.flush()
        names = [f"{name}-{typed}" for name in ("oldest", "middle", "latest")]
        histories = [await _first_turn(scene, name, seed=900 + seed) for seed, name in enumerate(names)]
        await _obeyed(scene, Label(program_id=names[2], label="idle"))
        tokens = POOL_TOKENS - 3 * PROMPT_TOKENS + PROMPT_TOKENS // 2
        assert (await scene.chat(f"press-{typed}", words(910, tokens))).status == 200
        _, device, host = await _next_turn(scene, names[0], histories[0])
        assert (device >= PROMPT_TOKENS) is typed
        assert device + host >= PROMPT_TOKENS

    play(story, host_engine, labelling_bus)


@_by_label
def test_host_memory_keeps_idle_contexts_longest(
    host_engine: EngineServer, labelling_bus: Bus, config: str
) -> None:
    typed = config == _TYPED

    async def story(scene: Scene) -> None:
        await policies_told(host_engine, config)
        await scene.flush()
        name = f"rests-{typed}"
        messages = await _first_turn(scene, name, seed=920)
        await _obeyed(scene, Demote(program_id=name))
        await _obeyed(scene, Label(program_id=name, label="idle"))
        for number in range(4):  # more than host memory holds
            await fill(scene, seed=1000 + 100 * number)
        _, device, host = await _next_turn(scene, name, messages)
        assert (device, host >= PROMPT_TOKENS) == (0, typed)

    play(story, host_engine, labelling_bus)
