"""An openai-agents run with one tool. Penstock is the hooks of a run, and its headers for the model.

python examples/agents/openai_agents.py "Which files are here?"
"""

import asyncio
from pathlib import Path

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from endpoint import KEY, MODEL, URL, task
from openai import AsyncOpenAI

from engine_hooks.tools.openai_agents import PenstockHooks


@function_tool
async def list_files(folder: str) -> str:
    """The names of the files in a folder."""
    return "\n".join(sorted(path.name for path in Path(folder).iterdir()))


async def main() -> None:
    set_tracing_disabled(True)
    hooks = PenstockHooks()
    agent = Agent(
        name="lister",
        instructions="Answer with what the tools tell.",
        tools=[list_files],
        model=OpenAIChatCompletionsModel(MODEL, AsyncOpenAI(base_url=URL, api_key=KEY)),
        model_settings=ModelSettings(extra_headers=hooks.headers),
    )
    try:
        result = await Runner.run(agent, task("Which files are here?"), hooks=hooks)
        print(f"{hooks.program_id}: {result.final_output}")
    finally:
        hooks.close()


asyncio.run(main())
