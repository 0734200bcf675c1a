"""What clients ask for at a running engine: what their next turn computes again, with a hint and without one."""

import json

import pytest
from engine_load import PROMPT_TOKENS, fill, first_turn, next_turn
from engine_scene import FCFS, Bus, Scene, playing
from engine_server import EngineServer
from engine_versions import on_every_version
from support.daemon_process import eventually
from tiny_model import words

from controlplane.core.model import commands as cmd
from controlplane.core.model.events import CommandApplied, PoolSampled, TurnEnded

HINTS = FCFS + "[control.hints]\nretain_most_s = 600\n"
KV_HINTS = "x-penstock-kv-hints"


def envelope(kind: str, **payload: object) -> dict[str, object]:
    action = {"action_id": "a", "action_type": kind, "action_version": "1.0", "payload": payload}
    return {"protocol_version": "0.1", "message_id": "m", "actions": [action]}


async def is_granted(scene: Scene) -> bool:
    """Whether the gate has heard that its engine does what it is told, which tells of its pool once a second."""
    reply = await scene.chat("before", "w1 w2", kv_hints=envelope("kv.deref"))
    return "accepted" in reply.headers[KV_HINTS]


@on_every_version
@pytest.mark.parametrize(
    ("seed", "asked", "outcome"),
    [
        (7001, {}, ""),
        (7002, {"kv_hints": envelope("kv.retain", ttl_seconds=300)}, "accepted"),
        (7003, {"cache_control": {"type": "ephemeral", "ttl": "5m"}}, ""),
        (7004, {"kv_hints": envelope("kv.deref")}, "accepted"),
    ],
    ids=["nothing", "retain", "ttl", "deref"],
)
async def test_a_context_that_its_client_asks_for_is_there_when_it_comes_back(
    plugin_engine: EngineServer, bus: Bus, seed: int, asked: dict[str, object], outcome: str
) -> None:
    """Others need more than the pool in between."""
    keeps = bool(asked) and "deref" not in str(asked)
    name = f"hinted-{seed}"
    async with playing(plugin_engine, bus, HINTS) as scene:
        await eventually(lambda: is_granted(scene), what="a gate that knows what its engine does", timeout_s=60)
        messages = [{"role": "user", "content": words(seed, PROMPT_TOKENS)}]
        reply = await scene.chat(name, messages, **asked)
        assert reply.status == 200
        receipt = json.loads(reply.headers.get(KV_HINTS, '{"actions": []}'))
        assert [each["outcome"] for each in receipt["actions"]] == [outcome] * bool(outcome), receipt
        if keeps:
            await scene.until(PoolSampled, where=lambda event: event.retained_blocks > 0)
        if "deref" in str(asked):
            await scene.until(CommandApplied, program_id=name, moved_to="none")
        else:
            await fill(scene, seed=7100)
        said = [*messages, {"role": "assistant", "content": reply.text}]
        back = await next_turn(scene, name, said)
        again = PROMPT_TOKENS - min(PROMPT_TOKENS, back.cached_tokens)
        assert again == (PROMPT_TOKENS - plugin_engine.whole_blocks(PROMPT_TOKENS) if keeps else PROMPT_TOKENS)


@on_every_version
async def test_the_blocks_of_what_has_ended_are_free_at_once(plugin_engine: EngineServer, bus: Bus) -> None:
    """By a request of its own, and with the last turn; an older context that goes on stays."""
    async with playing(plugin_engine, bus, HINTS) as scene:
        said = await first_turn(scene, "goes-on", seed=7200)
        await first_turn(scene, "ends", seed=7201)
        over = await scene.until(TurnEnded, program_id="ends")
        before = (await scene.until(PoolSampled, where=lambda event: event.at_ns > over.at_ns)).free_blocks
        answer = await scene.post("/programs/release", {}, "ends")
        assert answer.status == 200
        await scene.until(CommandApplied, program_id="ends", moved_to="none")
        needed = plugin_engine.whole_blocks(PROMPT_TOKENS) // scene.block_tokens

        def is_free(event: PoolSampled) -> bool:
            return event.free_blocks >= before + needed - 1

        await scene.until(PoolSampled, where=is_free)
        messages = [{"role": "user", "content": words(7202, PROMPT_TOKENS)}]
        assert (await scene.chat("last", messages, is_last_step=True)).status == 200
        await scene.until(CommandApplied, program_id="last", moved_to="none")
        discarded = [each.program_id for each in scene.commands if isinstance(each, cmd.Discard)]
        assert discarded == ["ends", "last"]
        assert (await next_turn(scene, "goes-on", said)).cached_tokens > 0
