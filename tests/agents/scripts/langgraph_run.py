"""One LangGraph run, told by JSON on the command line; JSON on the last line."""

import json
import sys
import time

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from engine_hooks.tools.langchain import PenstockCallback, headers

told = json.loads(sys.argv[1])
clock: list[dict[str, object]] = []


@tool
def look(seconds: float) -> str:
    """Look around for so many seconds."""
    began_ns = time.monotonic_ns()
    time.sleep(seconds)
    clock.append({"tool": "look", "began_ns": began_ns, "ended_ns": time.monotonic_ns()})
    if seconds > 0.25:
        raise ValueError("too long")
    return "nothing"


thread = "thread-42"
model = ChatOpenAI(base_url=told["url"], api_key="none", model="scripted", default_headers=headers(thread))
bound = model.bind_tools([look])
graph = StateGraph(MessagesState)
graph.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([look], handle_tool_errors=True))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
config = {"configurable": {"thread_id": thread}, "callbacks": [PenstockCallback()]}
result = graph.compile().invoke({"messages": [("user", told["message"])]}, config)
print(json.dumps({"program": thread, "output": result["messages"][-1].content, "tools": clock}))
