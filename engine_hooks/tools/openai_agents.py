"""openai-agents (0.24): hooks for one run.

    from engine_hooks.tools.openai_agents import PenstockHooks

    hooks = PenstockHooks()
    agent = Agent(..., model_settings=ModelSettings(extra_headers=hooks.headers))
    await Runner.run(agent, "...", hooks=hooks)
    hooks.close()      # at the end of the run, if it failed

The SDK does not guard its hooks: one that raises would end the run. These hooks never raise.
"""

import contextlib
import uuid
from typing import Any

from agents import RunHooks

from controlplane.emit.tool_reporter import ToolReporter
from controlplane.tool_calls.calls import called_name
from engine_hooks.tools.shared import PROGRAM_HEADER, guard, is_on, reporter


class PenstockHooks(RunHooks[Any]):
    """Reports one run and its tools. Without a ``program_id`` it makes one; ``headers`` carries it to the engine.

    ``parent_id`` is the program whose tool this run is, for an agent that runs another.
    """

    def __init__(self, program_id: str = "", *, parent_id: str = "", to: ToolReporter | None = None) -> None:
        self.program_id = program_id or f"openai-agents-{uuid.uuid4().hex}"
        self._parent_id = parent_id
        self._to = to or reporter()
        self._on = is_on()
        self._begun = False

    @property
    def headers(self) -> dict[str, str]:
        """Headers for ``ModelSettings(extra_headers=...)``, which put requests under the program's name."""
        return {PROGRAM_HEADER: self.program_id}

    def close(self, reason: str = "closed") -> None:
        """End the run, however it ended. After a final output you need not call this."""
        if self._on and self._begun:
            self._begun = False
            self._to.program_ended(self.program_id, reason)

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        if self._on and not self._begun:
            self._begun = True
            self._to.program_started(self.program_id, parent_id=self._parent_id)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        self.close("finished")

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        """Report the tools that the reply calls as enqueued."""
        guard.run("openai-agents reply", self._reply, response)

    def _reply(self, response: Any) -> None:
        for item in response.output if self._on else ():
            call, name = getattr(item, "call_id", ""), getattr(item, "name", "")
            if call and name:
                tool = called_name(name, getattr(item, "arguments", None))
                self._to.tool_enqueued(self.program_id, call, tool)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        if self._on:
            with contextlib.suppress(Exception):
                await self._to.until_slot(self.program_id, _call_of(context, tool), _name_of(context, tool))
            guard.run("openai-agents tool", self._start, context, tool)

    def _start(self, context: Any, tool: Any) -> None:
        self._to.tool_started(self.program_id, _call_of(context, tool), _name_of(context, tool))

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        if self._on:
            guard.run("openai-agents tool", self._end, context, tool)

    def _end(self, context: Any, tool: Any) -> None:
        self._to.tool_ended(self.program_id, _call_of(context, tool))


def _call_of(context: Any, tool: Any) -> str:
    """The call's ``gen_ai.tool.call.id``. Tools that are not functions have none, and run one at a time."""
    return str(getattr(context, "tool_call_id", "") or tool.name)


def _name_of(context: Any, tool: Any) -> str:
    """The tool's name; a shell call goes by the program that it runs."""
    return called_name(tool.name, getattr(context, "tool_arguments", None))
