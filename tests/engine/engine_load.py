"""Programs of more than one turn, others that fill the pool in between, and what an idle engine owes."""

import asyncio
import time

from engine_client import EngineClient, Messages, Reply
from engine_scene import Scene
from engine_server import POOL_TOKENS
from tiny_model import words

from controlplane.core.model.commands import Retain
from controlplane.core.model.events import FirstToken, PoolSampled
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, seconds

PROMPT_TOKENS = 600
_TRIES = 5
_TTL_S = 0.4
_AT_ONCE_S = 0.3  # a machine may be busy, but not at every try; an engine that looks once a second is later at each


async def first_turn(client: EngineClient, program_id: str, seed: int, tokens: int = PROMPT_TOKENS) -> Messages:
    """A program's first turn; the messages so far."""
    messages = [{"role": "user", "content": words(seed, tokens)}]
    reply = await client.chat(program_id, messages)
    assert (reply.status, reply.prompt_tokens) == (200, tokens)
    return [*messages, {"role": "assistant", "content": reply.text}]


async def next_turn(client: EngineClient, program_id: str, messages: Messages, **more: bool) -> Reply:
    """The program's next turn: all that was said, and a little more."""
    reply = await client.chat(program_id, [*messages, {"role": "user", "content": "w3 w4 w5"}], **more)
    assert reply.status == 200
    assert reply.prompt_tokens > PROMPT_TOKENS
    return reply


async def fill(client: EngineClient, seed: int, pool_tokens: int = POOL_TOKENS, program: str = "filler") -> None:
    """Other programs' prompts, one by one, that together need more than the pool; nobody's, without a name.

    Nobody's are plain text: a chat that names nobody may go on.
    """
    path = "/v1/chat/completions" if program else "/v1/completions"
    for number in range(pool_tokens // PROMPT_TOKENS + 2):
        name = program and f"{program}-{seed}-{number}"
        assert (await client.chat(name, words(seed + number, PROMPT_TOKENS), path=path)).status == 200


async def decoding(
    scene: Scene, program_id: str, seed: int, tokens: int, output_tokens: int
) -> "asyncio.Task[Reply]":
    """A turn that decodes for a while, once it has begun to."""
    turn = asyncio.ensure_future(scene.chat(program_id, words(seed, tokens), output_tokens=output_tokens))
    await scene.until(FirstToken, program_id=program_id)
    return turn


async def obeys_and_ends_pins_at_once(scene: Scene, seed: int) -> None:
    """An idle engine sees commands and deadlines at once, though there is no step to see them at."""
    await first_turn(scene, "idle", seed)
    took_s, late_s = [], []
    for _ in range(_TRIES):
        began = time.monotonic()
        await scene.obeyed(Retain(program_id="idle", ttl_ns=seconds(60)))
        took_s.append(time.monotonic() - began)
        await asyncio.sleep(0.1)  # the engine falls asleep again
    assert min(took_s) < _AT_ONCE_S, took_s
    for _ in range(_TRIES):
        due_ns = (await scene.obeyed(Retain(program_id="idle", ttl_ns=seconds(_TTL_S)))).at_ns + seconds(_TTL_S)
        ended = await scene.until(PoolSampled, where=lambda event, due_ns=due_ns: event.at_ns >= due_ns)
        assert ended.retained_blocks == 0, "its end is told at once"
        assert ended.free_blocks + ended.evictable_blocks == ended.total_blocks
        late_s.append((ended.at_ns - due_ns) / NANOSECONDS_PER_SECOND)
    assert min(late_s) < _AT_ONCE_S, late_s
