"""An OpenHands agent with a terminal and a file editor. Penstock is one import.

python examples/agents/openhands_agent.py "Say which files are here, then finish."
"""

from pathlib import Path

from endpoint import KEY, MODEL, URL, task
from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr

import engine_hooks.tools.openhands  # noqa: F401  reports every run and tool of this process

llm = LLM(model=f"openai/{MODEL}", base_url=URL, api_key=SecretStr(KEY), usage_id="agent")
agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)])
conversation = Conversation(agent=agent, workspace=str(Path.cwd()))
conversation.send_message(task("Say which files are here, then finish."))
conversation.run()
print(f"\nprogram {conversation.id}: {conversation.state.execution_status.value}")
conversation.close()
