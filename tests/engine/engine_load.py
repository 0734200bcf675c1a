"""Programs of more than one turn, and others that fill the pool in between."""

from engine_client import EngineClient, Messages, Reply
from engine_server import POOL_TOKENS
from tiny_model import words

PROMPT_TOKENS = 600


async def first_turn(client: EngineClient, program_id: str, seed: int) -> Messages:
    """A program's first turn; the messages so far."""
    messages = [{"role": "user", "content": words(seed, PROMPT_TOKENS)}]
    reply = await client.chat(program_id, messages)
    assert (reply.status, reply.prompt_tokens) == (200, PROMPT_TOKENS)
    return [*messages, {"role": "assistant", "content": reply.text}]


async def next_turn(client: EngineClient, program_id: str, messages: Messages) -> Reply:
    """The program's next turn: all that was said, and a little more."""
    reply = await client.chat(program_id, [*messages, {"role": "user", "content": "w3 w4 w5"}])
    assert reply.status == 200
    assert reply.prompt_tokens > PROMPT_TOKENS
    return reply


async def fill(client: EngineClient, seed: int) -> None:
    """Other programs' prompts, one after another, that together need more than the pool."""
    for number in range(POOL_TOKENS // PROMPT_TOKENS + 2):
        text = words(seed + number, PROMPT_TOKENS)
        assert (await client.chat(f"filler-{seed}-{number}", text)).status == 200
