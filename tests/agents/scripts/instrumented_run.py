"""One run of an agent that knows nothing of Penstock but an address: told by JSON on the command line.

Its spans go where OpenTelemetry's own variables say. JSON on the last line.
"""

import asyncio
import json
import os
import sys
import time

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.httpx import HTTPX2ClientInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

told = json.loads(sys.argv[1])
spans = TracerProvider()
if os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
    spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
MODEL = {"base_url": told["url"], "api_key": "none"}


def openai_client() -> str:
    """The plain client, whose program keeps one cache key, and says which request is its last."""
    from openai import OpenAI

    client, messages = OpenAI(**MODEL), [{"role": "user", "content": told["message"]}]
    function = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    for is_last in (False, True):
        answer = client.chat.completions.create(
            model="scripted",
            messages=messages,
            tools=[{"type": "function", "function": function}],
            prompt_cache_key=told["program"],
            extra_body={"is_last_step": is_last},
        )
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        calls = answer.choices[0].message.tool_calls or ()
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "nothing"} for call in calls]
    return str(messages[-1]["content"])


def openai_agents() -> str:
    """Its instrumentation names neither a conversation nor a call: the trace leads to the program."""
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI
    from opentelemetry.instrumentation.openai_agents import OpenAIAgentsInstrumentor

    OpenAIAgentsInstrumentor().instrument(tracer_provider=spans)
    HTTPX2ClientInstrumentor().instrument(tracer_provider=spans)

    @function_tool
    def look(seconds: float) -> str:
        """Look around for so many seconds."""
        time.sleep(seconds)
        return "nothing"

    model = OpenAIChatCompletionsModel("scripted", AsyncOpenAI(**MODEL))
    settings = ModelSettings(extra_headers={"x-session-id": told["program"]})
    agent = Agent(name="looker", instructions="Look.", tools=[look], model=model, model_settings=settings)
    return str(asyncio.run(Runner.run(agent, told["message"])).final_output)


def langgraph() -> str:
    """Its thread is OpenInference's session."""
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition
    from openinference.instrumentation.langchain import LangChainInstrumentor

    LangChainInstrumentor().instrument(tracer_provider=spans)

    @tool
    def look(seconds: float) -> str:
        """Look around for so many seconds."""
        time.sleep(seconds)
        return "nothing"

    model = ChatOpenAI(model="scripted", default_headers={"x-session-id": told["program"]}, **MODEL).bind_tools(
        [look]
    )
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([look]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    state = {"messages": [("user", told["message"])]}
    done = graph.compile().invoke(state, {"configurable": {"thread_id": told["program"]}})
    return str(done["messages"][-1].content)


output = {"openai": openai_client, "openai-agents": openai_agents, "langgraph": langgraph}[told["agent"]]()
spans.shutdown()
print(json.dumps({"output": output}))
