"""Demote, Prefetch and Discard where SGLang keeps contexts in host memory as well (HiCache)."""

import asyncio
from collections.abc import Iterator

import pytest
from engine_client import Messages, Reply
from engine_load import PROMPT_TOKENS, fill, first_turn, next_turn
from engine_scene import FCFS, Bus, Scene, playing, policies_told
from engine_server import POOL_TOKENS, EngineServer, Launch
from engine_versions import on
from tiny_model import words

from controlplane.core.model.commands import Demote, Discard, Label, Prefetch, Retain
from controlplane.core.model.events import CommandApplied, ContextMoved, Event, FirstToken, PoolSampled, TurnEnded
from controlplane.core.model.types import seconds

pytestmark = on("sglang")
on_every_policy = pytest.mark.parametrize("write_policy", ["write_through", "write_back"], indirect=True)
TYPED = FCFS + '[priority]\npolicy = "typed"\n[memory]\npolicy = "typed"\n'
TOOL_S = 6.0
LEARNED = 3  # gaps of each of these programs
PROGRAMS = tuple(f"tool-{number}" for number in range(4))
PREFETCHING = """
preset = "infercept"
[retention]
prefetch_s = {prefetch_s}
[control.silence]
end_after_reply_s = 60  # this model calls no tools
"""
_HOST_MEMORY = (
    "--enable-hierarchical-cache",
    *("--hicache-io-backend", "direct"),
    *("--hicache-mem-layout", "layer_first"),
)


@pytest.fixture(scope="module", params=["write_through"])
def write_policy(request: pytest.FixtureRequest) -> str:
    """When the engine copies to the host: as soon as there is something new, or when the device is full."""
    policy: str = request.param
    return policy


@pytest.fixture(scope="module")
def host_engine(write_policy: str, launch: Launch) -> Iterator[EngineServer]:
    """SGLang with the plugin and host memory for twice its pool."""
    yield from launch("host", *_HOST_MEMORY, "--hicache-write-policy", write_policy)


async def begun(scene: Scene, program_id: str, seed: int) -> Messages:
    """A first turn that the scheduler has told of: it hears commands, too."""
    messages = await first_turn(scene, program_id, seed)
    await scene.until(TurnEnded, program_id=program_id)
    return messages


async def returns(scene: Scene, program_id: str, messages: Messages) -> tuple[Reply, int, int]:
    """A next turn, and how many of its tokens were cached on the device and on the host."""
    reply = await next_turn(scene, program_id, messages, return_cached_tokens_details=True)
    return reply, *cached(reply)


def cached(reply: Reply) -> tuple[int, int]:
    """Tokens found on the device, and on the host; a reply without any says nothing of it."""
    details = (reply.body.get("sglext") or {}).get("cached_tokens_details", {})
    return details.get("device", 0), details.get("host", 0)


async def sample_after(scene: Scene, event: Event) -> PoolSampled:
    sample: PoolSampled = await scene.until(PoolSampled, where=lambda each: each.sequence > event.sequence)
    return sample


@on_every_policy
async def test_a_context_is_moved_to_the_host_and_back_and_says_the_same_as_one_that_was_not(
    host_engine: EngineServer, bus: Bus
) -> None:
    """The moved tokens come back where they were: the next turn's words do not change."""
    async with playing(host_engine, bus, FCFS) as scene:
        messages = await begun(scene, "moved", seed=700)
        unmoved, device, _ = await returns(scene, "moved", messages)
        assert device >= PROMPT_TOKENS
        before = await sample_after(scene, await scene.until(TurnEnded, 2, program_id="moved"))
        after = await sample_after(scene, await scene.obeyed(Demote(program_id="moved")))
        assert before.host_total_blocks > POOL_TOKENS
        assert after.free_blocks >= before.free_blocks + PROMPT_TOKENS
        assert after.host_used_blocks >= PROMPT_TOKENS
        demoted, device, host = await returns(scene, "moved", messages)
        assert (demoted.text, device, host >= PROMPT_TOKENS) == (unmoved.text, 0, True)
        await scene.until(FirstToken, 3, program_id="moved")
        assert [told.loaded_tokens for told in scene.heard(FirstToken, program_id="moved")] == [0, 0, host]
        await scene.obeyed(Demote(program_id="moved"))
        await scene.obeyed(Prefetch(program_id="moved"))
        fetched, device, host = await returns(scene, "moved", messages)
        assert (fetched.text, device >= PROMPT_TOKENS, host) == (unmoved.text, True, 0)
        await scene.obeyed(Discard(program_id="moved"))
        _, device, _ = await returns(scene, "moved", messages)
        assert device == 0


@on_every_policy
async def test_under_pressure_moves_and_turns_go_on_together(host_engine: EngineServer, bus: Bus) -> None:
    """Loads of ours and of the engine's own, evictions and moves at once: nothing fails and nothing is lost."""
    async with playing(host_engine, bus, FCFS) as scene:
        histories = {f"busy-{n}": await begun(scene, f"busy-{n}", seed=770 + n) for n in range(4)}
        for round_number in range(3):
            await scene.say(*(Demote(program_id=name) for name in histories))
            await fill(scene, seed=780 + 20 * round_number)
            said = await scene.say(*(Prefetch(program_id=name) for name in histories))
            for name, messages in histories.items():
                _, device, host = await returns(scene, name, messages)
                assert device + host >= PROMPT_TOKENS
            for command_id in said:
                await scene.answer(command_id)
        assert host_engine.is_healthy()


async def test_what_others_share_stays_on_the_device_and_a_pinned_context_can_be_demoted(
    host_engine: EngineServer, bus: Bus
) -> None:
    async with playing(host_engine, bus, FCFS) as scene:
        shared = words(730, 300)
        for name, seed in (("one", 731), ("two", 732)):
            assert (await scene.chat(name, f"{shared} {words(seed, 300)}")).status == 200
            await scene.until(TurnEnded, program_id=name)
        await scene.obeyed(Retain(program_id="one", ttl_ns=seconds(60)))
        for name in ("one", "two"):
            demoted = await scene.obeyed(Demote(program_id=name))
        assert (await sample_after(scene, demoted)).retained_blocks == 0
        third = await scene.chat("three", f"{shared} {words(733, 20)}", return_cached_tokens_details=True)
        assert cached(third) == (300, 0)


async def test_idle_contexts_go_to_the_host_before_busy_ones_and_stay_there_longest(
    host_engine: EngineServer, bus: Bus
) -> None:
    """MORI §4.3.2. By last use, the engine's own order, the oldest would go and none would stay."""
    async with playing(host_engine, bus, TYPED) as scene:
        await policies_told(host_engine, TYPED)
        await scene.flush()
        said = {name: await begun(scene, name, seed=900 + n) for n, name in enumerate(("oldest", "middle", "idle"))}
        await scene.obeyed(Label(program_id="idle", label="idle"))
        tokens = POOL_TOKENS - 3 * PROMPT_TOKENS + PROMPT_TOKENS // 2
        assert (await scene.chat("press", words(910, tokens))).status == 200
        _, device, _ = await returns(scene, "oldest", said["oldest"])
        assert device >= PROMPT_TOKENS
        for number in range(4):  # more than host memory holds
            await fill(scene, seed=1000 + 100 * number)
        _, device, host = await returns(scene, "idle", said["idle"])
        assert (device, host >= PROMPT_TOKENS) == (0, True)
        _, device, host = await returns(scene, "middle", said["middle"])
        assert device + host < PROMPT_TOKENS


async def test_a_context_is_demoted_in_a_long_tool_and_is_back_before_its_program(
    host_engine: EngineServer, bus: Bus
) -> None:
    """Programs whose tools take as long as ever, as the daemon has seen so often of each."""
    name = PROGRAMS[-1]

    async def goes_on(scene: Scene, program_id: str) -> tuple[int, int]:
        """The program's next turn, appended to its messages; what was cached, and where."""
        messages = found[program_id]
        reply, device, host = await returns(scene, program_id, messages)
        messages += [{"role": "user", "content": "w3 w4 w5"}, {"role": "assistant", "content": reply.text}]
        return device, host

    found: dict[str, Messages] = {}
    async with playing(host_engine, bus, PREFETCHING.format(prefetch_s=3.0)) as scene:
        for number, program_id in enumerate(PROGRAMS):
            found[program_id] = await first_turn(scene, program_id, seed=1500 + number)
        for _ in range(LEARNED):
            await asyncio.sleep(TOOL_S)
            for program_id in PROGRAMS:
                said = len(scene.commands)
                await goes_on(scene, program_id)
        await scene.until_said(Demote, name, after=said)
        # Requests of nobody: nothing of it would be left on a device that has no host memory behind it.
        await fill(scene, seed=1600, program="")
        fetched = await scene.until_said(Prefetch, name, after=said)
        assert "expected back in" in fetched.reason
        await scene.until(CommandApplied, command_id=fetched.command_id, program_id=name)
        device, host = await goes_on(scene, name)
        assert (device >= PROMPT_TOKENS, host) == (True, 0)


async def test_a_copy_that_the_engine_gives_up_is_known_to_be_gone(host_engine: EngineServer, bus: Bus) -> None:
    name = "given-up"
    async with playing(host_engine, bus, PREFETCHING.format(prefetch_s=0.0)) as scene:
        messages = await first_turn(scene, name, seed=1800)
        await scene.until_said(Demote, name)
        await scene.tier(name, "host")
        for number in range(4):  # more than host memory holds
            await fill(scene, seed=1900 + 100 * number, program="")
        await scene.until(ContextMoved, program_id=name, below_tokens=0)
        await scene.tier(name, "none")
        _, device, host = await returns(scene, name, messages)
        assert (device, host) == (0, 0)
