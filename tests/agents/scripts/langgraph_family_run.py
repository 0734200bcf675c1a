"""A LangGraph run whose tools are sub-agents, and that has a subgraph, told by JSON on the command line."""

import json
import sys
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from engine_hooks.tools.langchain import PenstockCallback, headers, sub_agent

told = json.loads(sys.argv[1])
THREAD = "thread-42"


def model(program: str) -> ChatOpenAI:
    return ChatOpenAI(base_url=told["url"], api_key="none", model="scripted", default_headers=headers(program))


def one_call(program: str) -> Any:
    """A graph that asks the model once."""
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model(program).invoke(state["messages"])]})
    graph.add_edge(START, "model")
    return graph.compile()


@tool
def research(topic: str) -> str:
    """Have a sub-agent look into it."""
    name = f"{THREAD}/{topic}"
    result = one_call(name).invoke({"messages": [("user", told["research"])]}, sub_agent(name))
    return str(result["messages"][-1].content)


bound = model(THREAD).bind_tools([research])
graph = StateGraph(MessagesState)
graph.add_node("subgraph", one_call(THREAD))
graph.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([research]))
graph.add_edge(START, "subgraph")
graph.add_edge("subgraph", "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
config = {"configurable": {"thread_id": THREAD}, "callbacks": [PenstockCallback()]}
result = graph.compile().invoke({"messages": [("user", told["message"])]}, config)
print(json.dumps({"program": THREAD, "output": result["messages"][-1].content}))
