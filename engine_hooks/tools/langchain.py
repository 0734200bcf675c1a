"""LangChain and LangGraph: a callback handler for any number of runs.

    from engine_hooks.tools.langchain import PenstockCallback

    callback = PenstockCallback()
    graph.invoke(state, {"configurable": {"thread_id": "42"}, "callbacks": [callback]})

An outermost run is a program, named after its thread (``thread_id``) or else its run. For the engine to know it by
that name, give the model the same header: ``ChatOpenAI(default_headers=headers("42"))``.

What runs within it is part of it: subgraphs, and graphs that a tool invokes, whatever thread they are given. A
sub-agent that has a context of its own is a program of its own, a child of the one that it runs within, if it is
invoked under a name, which its model sends too:

    graph.invoke(state, sub_agent("42/research"))  # its model: default_headers=headers("42/research")
"""

from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig

from controlplane.emit.latest import Latest
from controlplane.emit.tool_reporter import ToolReporter
from controlplane.tool_calls.calls import called_name
from engine_hooks.tools.shared import PROGRAM_HEADER, guard, is_on, reporter

_NAME = "penstock_program_id"  # in a run's metadata, which what runs within it has, too


def headers(program_id: str) -> dict[str, str]:
    """The headers that name the program to the engine."""
    return {PROGRAM_HEADER: program_id}


def sub_agent(program_id: str) -> RunnableConfig:
    """The configuration of a run that is a sub-agent of that name: for ``invoke``, or a node's ``with_config``."""
    return {"metadata": {_NAME: program_id}}


class PenstockCallback(BaseCallbackHandler):
    """Reports runs and tools. LangChain may call it from several threads."""

    run_inline = True  # in the order in which things happen, also where the rest is asynchronous

    def __init__(self, to: ToolReporter | None = None) -> None:
        self._to = to or reporter()
        self._on = is_on()
        self._program_of: Latest[UUID, str] = Latest()  # by every run that is open
        self._call_of: Latest[UUID, str] = Latest()
        self._begun: Latest[UUID, None] = Latest()  # runs with which a program began

    # Runs

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **more: Any) -> None:
        if self._on:
            guard.run("langchain run", self._begin, run_id, more.get("parent_run_id"), more.get("metadata") or {})

    def _begin(self, run_id: UUID, parent: UUID | None, metadata: dict[str, Any]) -> None:
        enclosing = self._program_of.get(parent, "") if parent is not None else ""
        named = str(metadata.get(_NAME) or "")  # LangGraph tells of the outermost thread alone
        program = self._program_of[run_id] = named or enclosing or str(metadata.get("thread_id") or run_id)
        if program != enclosing:
            self._begun[run_id] = None
            self._to.program_started(program, parent_id=enclosing)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **more: Any) -> None:
        guard.run("langchain run", self._end, run_id, "finished")

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        guard.run("langchain run", self._end, run_id, type(error).__name__)

    def _end(self, run_id: UUID, reason: str) -> None:
        program = self._program_of.pop(run_id, "")
        if run_id in self._begun:
            self._begun.pop(run_id, None)
            self._to.program_ended(program, reason)

    # Tools

    def on_llm_end(self, response: Any, *, run_id: UUID, **more: Any) -> None:
        """Report the tools that the reply calls as enqueued."""
        guard.run("langchain reply", self._reply, response, more.get("parent_run_id"))

    def _reply(self, response: Any, parent: UUID | None) -> None:
        program = self._program_of.get(parent, "") if parent is not None else ""
        for generation in response.generations[0]:
            for call in getattr(getattr(generation, "message", None), "tool_calls", ()):
                tool = called_name(call["name"], call.get("args"))
                self._to.tool_enqueued(program, str(call.get("id") or ""), tool)

    def on_tool_start(self, serialized: Any, input_str: str, *, run_id: UUID, **more: Any) -> None:
        guard.run("langchain tool", self._start, serialized, run_id, more)

    def _start(self, serialized: Any, run_id: UUID, more: dict[str, Any]) -> None:
        program = self._program_of.get(more["parent_run_id"], "") if more.get("parent_run_id") else ""
        if program:
            self._program_of[run_id] = program
            self._call_of[run_id] = str(more.get("tool_call_id") or run_id)
            name = str(more.get("name") or (serialized or {}).get("name") or "tool")
            tool = called_name(name, more.get("inputs"))
            self._to.wait_for_slot(program, self._call_of[run_id], tool)
            self._to.tool_started(program, self._call_of[run_id], tool)

    def on_tool_end(self, output: Any, *, run_id: UUID, **more: Any) -> None:
        guard.run("langchain tool", self._tool_ended, run_id, getattr(output, "status", "") != "error")

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        guard.run("langchain tool", self._tool_ended, run_id, False)

    def _tool_ended(self, run_id: UUID, ok: bool) -> None:
        self._to.tool_ended(self._program_of.pop(run_id, ""), self._call_of.pop(run_id, ""), ok=ok)
