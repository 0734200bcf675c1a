"""A conversation on an agent server, told by JSON on the command line; JSON on the last line."""

import json
import sys
import time

from openhands.sdk import LLM, Agent, Conversation, Tool, Workspace
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr

told = json.loads(sys.argv[1])
llm = LLM(model="openai/scripted", base_url=told["url"], api_key=SecretStr("none"), usage_id="agent", num_retries=0)
agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name)])
workspace = Workspace(host=told["server"], working_dir=told["workspace"])
conversation = Conversation(agent=agent, workspace=workspace, visualizer=None)
conversation.send_message(told["message"])
began_ns = time.monotonic_ns()
conversation.run()
ended_ns = time.monotonic_ns()
said = {
    "conversation": str(conversation.id),
    "status": conversation.state.execution_status.value,
    "began_ns": began_ns,
    "ended_ns": ended_ns,
}
conversation.close()
print(json.dumps(said))
