"""A client that knows nothing of Penstock: agents over OpenAI's own SDK that say who they are, and nothing else.

It runs in the engine's environment, by itself: told by JSON on the command line, tells JSON on its last line. An
agent has no tool runtime that reports, and says no goodbye; its tool is a sleep.
"""

import asyncio
import json
import random
import sys
from typing import Any

import openai

VOCABULARY = range(3, 2000)


def words(rng: random.Random, count: int) -> str:
    return " ".join(f"w{rng.choice(VOCABULARY)}" for _ in range(count))


async def turn(client: openai.AsyncOpenAI, program_id: str, messages: list[Any], tokens: int) -> tuple[str, Any]:
    """One streamed turn: its text and the engine's usage."""
    stream = await client.chat.completions.create(
        model="tiny",
        messages=messages,
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"program_id": program_id, "ignore_eos": True},
    )
    said, usage = [], None
    async for chunk in stream:
        said += [choice.delta.content or "" for choice in chunk.choices]
        usage = chunk.usage or usage
    return "".join(said), usage


async def agent(client: openai.AsyncOpenAI, asked: dict[str, Any]) -> dict[str, Any]:
    """One program: a turn, and another after each gap. What went wrong is told, and is its end."""
    rng, messages, prompts, error = random.Random(asked["name"]), [], [], ""
    await asyncio.sleep(asked["after_s"])
    try:
        for number, gap_s in enumerate([*asked["gaps_s"], None]):
            count = asked["grows_tokens"] if number else asked["first_tokens"]
            messages.append({"role": "user", "content": words(rng, count)})
            text, usage = await turn(client, asked["name"], messages, asked["output_tokens"])
            prompts.append(usage.prompt_tokens)
            messages.append({"role": "assistant", "content": text})
            if gap_s is not None:
                await asyncio.sleep(gap_s)
    except openai.OpenAIError as failure:
        error = f"{type(failure).__name__}: {failure}"
    return {"name": asked["name"], "prompt_tokens": prompts, "error": error}


async def main(told: dict[str, Any]) -> None:
    async with openai.AsyncOpenAI(base_url=f"{told['url']}/v1", api_key="none", max_retries=0) as client:
        outcomes = await asyncio.gather(*(agent(client, asked) for asked in told["programs"]))
    sys.stdout.write(json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
