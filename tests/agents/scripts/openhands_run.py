"""One OpenHands run in an environment of its own: told by JSON on the command line, tells JSON on its last line.

Beside the adapter, and not through it, it notes when each tool's executor began and ended.
"""

import json
import os
import sys
import time

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
told = json.loads(sys.argv[1])

if told.get("moved"):
    from openhands.sdk.agent.agent import Agent as _Agent

    _before = _Agent._execute_action_event
    _Agent._execute_action_event = lambda self, chat, event: _before(self, chat, event)

if told.get("adapter", True):
    import engine_hooks.tools.openhands  # noqa: F401
    from engine_hooks.tools import shared

    if told.get("broken"):

        def fail(*args: object, **kwargs: object) -> None:
            raise RuntimeError("as the test asked")

        names = ("program_started", "program_ended", "tool_enqueued", "wait_for_slot", "tool_started", "tool_ended")
        for name in names:
            setattr(shared.reporter(), name, fail)

from openhands.sdk import LLM, Agent, Conversation, Tool, register_agent  # noqa: E402
from openhands.sdk.tool import ToolDefinition, register_tool  # noqa: E402
from openhands.tools.delegate import DelegateAction, DelegateExecutor, DelegateObservation  # noqa: E402
from openhands.tools.file_editor import FileEditorTool  # noqa: E402
from openhands.tools.file_editor.impl import FileEditorExecutor  # noqa: E402
from openhands.tools.task import TaskToolSet  # noqa: E402
from openhands.tools.task_tracker import TaskTrackerTool  # noqa: E402
from openhands.tools.terminal import TerminalExecutor, TerminalTool  # noqa: E402
from pydantic import SecretStr  # noqa: E402

clock: list[dict[str, object]] = []


def timed(kind: type, name: str) -> None:
    inner = kind.__call__

    def call(self: object, action: object, *args: object, **kwargs: object) -> object:
        began_ns = time.monotonic_ns()
        try:
            return inner(self, action, *args, **kwargs)
        finally:
            clock.append({"tool": name, "began_ns": began_ns, "ended_ns": time.monotonic_ns()})

    kind.__call__ = call


timed(TerminalExecutor, TerminalTool.name)
timed(FileEditorExecutor, FileEditorTool.name)


class DelegateTool(ToolDefinition[DelegateAction, DelegateObservation]):
    """The executor of sub-agents that run side by side, as the SDK has it, under the name that it had as a tool."""

    name = "delegate"

    @classmethod
    def create(cls, *args: object, **kwargs: object) -> list["DelegateTool"]:
        types = {"action_type": DelegateAction, "observation_type": DelegateObservation}
        return [cls(description="Has sub-agents work.", executor=DelegateExecutor(), **types)]


register_tool(DelegateTool.name, DelegateTool)
terminal = {"terminal_type": told["terminal"]} if "terminal" in told else {}
tools = [
    Tool(name=TerminalTool.name, params=terminal),
    Tool(name=FileEditorTool.name),
    Tool(name=TaskTrackerTool.name),
]
llm = LLM(
    model="openai/scripted",
    base_url=told["url"],
    api_key=SecretStr("none"),
    usage_id="agent",
    num_retries=2,
    retry_min_wait=0,
    retry_max_wait=1,
)
register_agent(
    name="helper",
    factory_func=lambda llm: Agent(llm=llm, tools=[Tool(name=TerminalTool.name)]),
    description="Runs what it is told to.",
)
tools += [Tool(name=TaskToolSet.name), Tool(name=DelegateTool.name)]
agent = Agent(llm=llm, tools=tools, tool_concurrency_limit=told.get("parallel", 1))
conversation = Conversation(agent=agent, workspace=told["workspace"], visualizer=None)
conversation.send_message(told["message"])
began_ns = time.monotonic_ns()
conversation.run()
ended_ns = time.monotonic_ns()
title = conversation.generate_title() if told.get("title") else ""
failures = shared.guard.failures if told.get("adapter", True) else {}
stats = shared.reporter().stats if told.get("adapter", True) else None
conversation.close()
said = {
    "conversation": str(conversation.id),
    "status": conversation.state.execution_status.value,
    "began_ns": began_ns,
    "ended_ns": ended_ns,
    "tools": clock,
    "title": title,
    "failures": failures,
    "dropped": stats.dropped if stats else 0,
    "events": [type(event).__name__ for event in conversation.state.events],
}
print(json.dumps(said))
