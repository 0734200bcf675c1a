"""A daemon's policy that demotes a context while a long tool runs, and fetches it before its program comes back."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_client import Messages
from engine_load import PROMPT_TOKENS, first_turn
from engine_scene import Bus, Scene, opened, play
from engine_server import POOL_TOKENS, EngineServer
from tiny_model import words

from controlplane.core.commands import Demote, Prefetch
from controlplane.core.events import CommandApplied, ContextMoved, FirstToken

TOOL_S = 6.0
LEARNED = 3  # gaps of each of these programs
PROGRAMS = tuple(f"tool-{number}" for number in range(4))
CONFIG = """
preset = "infercept"
[retention]
host_blocks_per_s = 1e8
prefetch_s = {prefetch_s}
[control.silence]
end_after_reply_s = 60  # this model calls no tools
"""


@pytest.fixture
def tiered_bus(nats_server: Any, host_state_dir: Path, tmp_path: Path) -> Iterator[Bus]:
    yield from opened(Bus(nats_server, host_state_dir, tmp_path))


async def _turn(scene: Scene, name: str, messages: Messages) -> dict[str, int]:
    """The program's next turn, appended to its messages; what was cached, and where."""
    messages.append({"role": "user", "content": "w3 w4 w5"})
    reply = await scene.chat(name, messages, return_cached_tokens_details=True)
    assert reply.status == 200
    messages.append({"role": "assistant", "content": reply.text})
    said = reply.body.get("sglext") or {"cached_tokens_details": {"device": 0, "host": 0}}
    details: dict[str, int] = said["cached_tokens_details"]
    return details


async def _fill(scene: Scene, seed: int) -> None:
    """Requests of nobody that together need more than the pool: each has ended with its reply."""
    for number in range(POOL_TOKENS // PROMPT_TOKENS + 2):
        assert (await scene.chat("", words(seed + number, PROMPT_TOKENS))).status == 200


async def _learned(scene: Scene, names: tuple[str, ...], seed: int, gaps: int) -> tuple[Messages, int]:
    """Programs whose tools take as long as ever, as the daemon has seen so often of each.

    The last one's messages, and how many commands had been said before its last turn.
    """
    found = {name: await first_turn(scene, name, seed + number) for number, name in enumerate(names)}
    said = 0
    for _ in range(gaps):
        await asyncio.sleep(TOOL_S)
        for name, messages in found.items():
            said = len(scene.commands)
            await _turn(scene, name, messages)
    return found[names[-1]], said


def test_a_context_is_demoted_in_a_long_tool_and_is_back_before_its_program(
    host_engine: EngineServer, tiered_bus: Bus
) -> None:
    async def story(scene: Scene) -> None:
        messages, said = await _learned(scene, PROGRAMS, seed=1500, gaps=LEARNED)
        name = PROGRAMS[-1]
        await scene.until_said(Demote, name, after=said)
        await _fill(scene, seed=1600)  # nothing of it would be left on a device that has no host memory behind it
        fetched = await scene.until_said(Prefetch, name, after=said)
        assert "expected back in" in fetched.reason
        await scene.until(CommandApplied, command_id=fetched.command_id, program_id=name)
        cached = await _turn(scene, name, messages)
        assert (cached["device"] >= PROMPT_TOKENS, cached["host"]) == (True, 0)

    tiered_bus.daemon(CONFIG.format(prefetch_s=3.0))
    play(story, host_engine, tiered_bus)


def test_without_prefetch_it_is_loaded_when_its_turn_has_come(host_engine: EngineServer, tiered_bus: Bus) -> None:
    name = "unfetched"

    async def story(scene: Scene) -> None:
        messages, said = await _learned(scene, (name,), seed=1510, gaps=1)
        await scene.until_said(Demote, name, after=said)
        await _fill(scene, seed=1700)
        await asyncio.sleep(TOOL_S)
        assert not [each for each in scene.commands if isinstance(each, Prefetch)]
        cached = await _turn(scene, name, messages)
        assert (cached["device"], cached["host"] >= PROMPT_TOKENS) == (0, True)
        token = await scene.until(FirstToken, 3, program_id=name)
        assert token.loaded_tokens == cached["host"]

    tiered_bus.daemon(CONFIG.format(prefetch_s=0.0))
    play(story, host_engine, tiered_bus)


def test_a_copy_that_the_engine_gives_up_is_known_to_be_gone(host_engine: EngineServer, tiered_bus: Bus) -> None:
    name = "given-up"

    async def story(scene: Scene) -> None:
        messages = await first_turn(scene, name, seed=1800)
        await scene.until_said(Demote, name)
        await scene.tier(name, "host")
        for number in range(4):  # more than host memory holds
            await _fill(scene, seed=1900 + 100 * number)
        await scene.until(ContextMoved, program_id=name, below_tokens=0)
        await scene.tier(name, "none")
        cached = await _turn(scene, name, messages)
        assert (cached["device"], cached["host"]) == (0, 0)

    tiered_bus.daemon(CONFIG.format(prefetch_s=0.0))
    play(story, host_engine, tiered_bus)
