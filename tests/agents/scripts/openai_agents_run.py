"""One openai-agents run, told by JSON on the command line; JSON on the last line."""

import asyncio
import json
import sys
import time

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from engine_hooks.tools.openai_agents import PenstockHooks

told = json.loads(sys.argv[1])
clock: list[dict[str, object]] = []
set_tracing_disabled(True)


@function_tool
async def look(seconds: float) -> str:
    """Look around for so many seconds."""
    began_ns = time.monotonic_ns()
    await asyncio.sleep(seconds)
    clock.append({"tool": "look", "began_ns": began_ns, "ended_ns": time.monotonic_ns()})
    return "nothing"


async def main() -> None:
    hooks = PenstockHooks()
    model = OpenAIChatCompletionsModel("scripted", AsyncOpenAI(base_url=told["url"], api_key="none"))
    settings = ModelSettings(extra_headers=hooks.headers)
    agent = Agent(name="looker", instructions="Look.", tools=[look], model=model, model_settings=settings)
    result = await Runner.run(agent, told["message"], hooks=hooks)
    print(json.dumps({"program": hooks.program_id, "output": result.final_output, "tools": clock}))


asyncio.run(main())
