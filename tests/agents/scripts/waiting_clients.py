"""Streams of the real SDKs, told by JSON on the command line; JSON on the last line: what each program was given.

A program is named ``SDK-and-more``; its request's model says to the application what to answer.
"""

import asyncio
import json
import sys
from typing import Any

import anthropic
import openai

told = json.loads(sys.argv[1])
openai_client = openai.AsyncOpenAI(base_url=f"{told['url']}/v1", api_key="none", max_retries=0)
anthropic_client = anthropic.AsyncAnthropic(base_url=told["url"], api_key="none", max_retries=0)
MESSAGES: Any = [{"role": "user", "content": "one two"}]


async def chat(**more: Any) -> str:
    stream = await openai_client.chat.completions.create(messages=MESSAGES, stream=True, **more)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def completions(**more: Any) -> str:
    stream = await openai_client.completions.create(prompt="one two", stream=True, **more)
    return "".join([chunk.choices[0].text async for chunk in stream])


async def responses(**more: Any) -> str:
    stream = await openai_client.responses.create(input="one two", stream=True, **more)
    return "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])


async def messages(**more: Any) -> str:
    async with anthropic_client.messages.stream(messages=MESSAGES, max_tokens=9, **more) as stream:
        return "".join([text async for text in stream.text_stream])


ASK = {"chat": chat, "completions": completions, "responses": responses, "messages": messages}


async def ask(program: str) -> Any:
    sdk, _, model = program.partition("-")
    try:
        return await ASK[sdk](model=model, extra_headers={"x-penstock-program-id": program})
    except (openai.APIError, anthropic.APIError) as error:
        body: Any = error.body
        return {"error": type(error).__name__, **body.get("error", body)}


async def main() -> None:
    answers = await asyncio.gather(*map(ask, told["programs"]))
    print(json.dumps(dict(zip(told["programs"], answers, strict=True))))


asyncio.run(main())
