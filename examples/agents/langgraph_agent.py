"""A LangGraph agent with one tool. Penstock is a callback, and a header for the model.

python examples/agents/langgraph_agent.py "Which files are here?"
"""

import uuid
from pathlib import Path

from endpoint import KEY, MODEL, URL, task
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from engine_hooks.tools.langchain import PenstockCallback, headers


@tool
def list_files(folder: str) -> str:
    """The names of the files in a folder."""
    return "\n".join(sorted(path.name for path in Path(folder).iterdir()))


thread = f"example-{uuid.uuid4().hex}"
model = ChatOpenAI(base_url=URL, api_key=KEY, model=MODEL, default_headers=headers(thread)).bind_tools([list_files])
graph = StateGraph(MessagesState)
graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([list_files]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
result = graph.compile().invoke(
    {"messages": [("user", task("Which files are here?"))]},
    {"configurable": {"thread_id": thread}, "callbacks": [PenstockCallback()]},
)
print(f"{thread}: {result['messages'][-1].content}")
