"""What a hook of Claude Code reads on its standard input, as events.

A session is a program. A sub-agent is a program of its own, ``SESSION/AGENT``, as the gate names it by what Claude
Code 2.1.139 and later sends. What a hook tells of a tool is ``detached``: its process ends at once.

- A tool's time is its ``duration_ms`` (2.1.119 and later), which leaves out hooks and the wait for a person's
  permission. ``PreToolUse`` comes before that wait, so without ``duration_ms`` nothing is learned. Nor is it of a
  command that goes to the background, of a sub-agent, and of a question to the person.
- ``Stop`` is the end of an answer. The session goes on if the person does, a hook of ``Stop`` wants it to, or a
  background task ends; such tasks (2.1.145 and later) are its tools meanwhile, and sub-agents its children.
- ``SessionEnd`` is the end of the process, and so of all that ran in it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from controlplane.core.model.errors import RemoteEventError
from controlplane.core.model.events import Event, ProgramArrived, ProgramEnded, ToolEnded, ToolStarted
from controlplane.core.model.text import sanitize
from controlplane.tool_calls.calls import called_name

_NOT_ITS_OWN_TIME = frozenset({"Agent", "Task", "AskUserQuestion", "ExitPlanMode"})
_MOST_TASKS = 64


def events_of(data: bytes) -> list[Event]:
    """The events of one hook's input; none for a hook that tells us nothing.

    :raises RemoteEventError: it is no JSON object.
    """
    try:
        hook = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RemoteEventError(f"a hook's input of {len(data)} bytes: {error}") from None
    if not isinstance(hook, dict):
        raise RemoteEventError(f"a hook's input: expected an object, got {type(hook).__name__}")
    return list(_events(hook)) if _text(hook, "session_id") else []


def _events(hook: Mapping[str, Any]) -> Iterator[Event]:
    session, agent, kind = _text(hook, "session_id"), _text(hook, "agent_id"), _text(hook, "hook_event_name")
    session = sanitize(session)
    program = sanitize(f"{session}/{agent}") if agent else session
    call, tool = sanitize(_text(hook, "tool_use_id")), _text(hook, "tool_name")
    tool = called_name(tool, hook.get("tool_input")) if tool else ""
    if kind == "SessionStart":
        yield ProgramArrived(program_id=session)
    elif kind == "SubagentStart" and agent:
        yield ProgramArrived(program_id=program, parent_id=session)
    elif kind == "SubagentStop" and agent:
        yield ProgramEnded(program_id=program, reason=kind)
    elif kind == "PreToolUse" and call and tool:
        yield ToolStarted(program_id=program, call_id=call, tool=tool, detached=True)
    elif kind in ("PostToolUse", "PostToolUseFailure", "PermissionDenied") and call and tool:
        ok, took_ns = kind == "PostToolUse", _took_ns(hook)
        yield ToolEnded(program_id=program, call_id=call, tool=tool, duration_ns=took_ns, ok=ok, detached=True)
    elif kind == "Stop":
        yield ProgramEnded(program_id=session, reason=kind, for_now=True)
        yield from _in_background(session, hook.get("background_tasks"))
    elif kind == "SessionEnd":
        yield ProgramEnded(program_id=session, reason=_text(hook, "reason") or kind, with_children=True)


def _in_background(session: str, tasks: object) -> Iterator[Event]:
    """Tasks that will wake the session; each ``Stop`` lists anew those that still run."""
    for task in tasks[:_MOST_TASKS] if isinstance(tasks, list) else ():
        if not isinstance(task, dict) or task.get("status") != "running" or task.get("type") == "subagent":
            continue
        tool = called_name("bash", task) if task.get("command") else _text(task, "type")
        if (name := _text(task, "id")) and tool:
            yield ToolStarted(program_id=session, call_id=f"background/{name}", tool=tool, detached=True)


def _took_ns(hook: Mapping[str, Any]) -> int:
    """How long the tool itself took, in nanoseconds; 0 where that is unknown."""
    took_ms, tool_input = hook.get("duration_ms"), hook.get("tool_input")
    aside = isinstance(tool_input, dict) and tool_input.get("run_in_background") is True
    if aside or hook.get("tool_name") in _NOT_ITS_OWN_TIME or isinstance(took_ms, bool):
        return 0
    return int(took_ms * 1e6) if isinstance(took_ms, int | float) and 0 < took_ms < 1e12 else 0


def _text(hook: Mapping[str, Any], name: str) -> str:
    value = hook.get(name)
    return value if isinstance(value, str) else ""
