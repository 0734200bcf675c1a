"""Claude Code: a command for its hooks, which reports what it reads on standard input.

    {"hooks": {"PreToolUse": [{"hooks": [
        {"type": "command", "command": "python -m engine_hooks.tools.claude_code"}]}]}}

Use the same command for ``PostToolUse``, ``PostToolUseFailure``, ``SessionStart``, ``Stop``, ``SessionEnd``,
``SubagentStart`` and ``SubagentStop``.

A sub-agent is a program of its own, ``SESSION/AGENT``, as the gate names it by what Claude Code 2.1.139 and later
sends, and a child of the session, whose tool waits for it.

Each hook is a separate process, so the start of a tool leaves a file behind from which its end computes the
duration. The exit status is always 0 and nothing is printed, since the model would see anything else.
"""

import contextlib
import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from controlplane.core.tool_calls import called_name
from controlplane.emit.tool_reporter import ToolReporter
from engine_hooks.tools.shared import is_on, reporter

_FORGET_AFTER_S = 24 * 3600.0


def report(event: dict[str, Any], to: ToolReporter, folder: Path) -> None:
    """Report one hook's input. ``folder`` keeps the starts of tools."""
    session, kind = str(event.get("session_id") or ""), event.get("hook_event_name")
    agent = str(event.get("agent_id") or "")
    program = f"{session}/{agent}" if session and agent else session
    tool, call = str(event.get("tool_name") or ""), str(event.get("tool_use_id") or "")
    tool = called_name(tool, event.get("tool_input"))
    if kind == "SessionStart":
        to.program_started(session)
    elif kind == "SubagentStart" and agent:
        to.program_started(program, parent_id=session)
    elif kind == "SubagentStop" and agent:
        to.program_ended(program, kind)
    elif kind == "PreToolUse":
        to.wait_for_slot(program, call, tool)
        _note(folder, program, call)
        to.tool_started(program, call, tool)
    elif kind in ("PostToolUse", "PostToolUseFailure"):
        to.tool_taken_up(program, call, tool, began_ns=_noted_ns(folder, program, call))
        to.tool_ended(program, call, ok=kind == "PostToolUse")
    elif kind in ("Stop", "SessionEnd"):
        to.program_ended(session, str(event.get("reason") or kind))


def _path(folder: Path, program: str, call: str) -> Path:
    return folder / hashlib.sha256(f"{program}\0{call}".encode()).hexdigest()[:32]


def _note(folder: Path, program: str, call: str) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _path(folder, program, call).write_text(str(time.monotonic_ns()))
    for old in folder.iterdir():  # of sessions that were killed
        if time.time() - old.stat().st_mtime > _FORGET_AFTER_S:
            old.unlink(missing_ok=True)


def _noted_ns(folder: Path, program: str, call: str) -> int:
    """When the tool began, on this machine's monotonic clock; 0 if unknown."""
    path = _path(folder, program, call)
    try:
        began_ns = int(path.read_text())
    except (OSError, ValueError):
        return 0
    path.unlink(missing_ok=True)
    return began_ns if began_ns <= time.monotonic_ns() else 0  # the machine was started anew


def main() -> int:
    """Run one hook: read its input, report it, and exit with 0."""
    with contextlib.suppress(Exception):
        event = json.load(sys.stdin)
        if is_on() and isinstance(event, dict):
            to = reporter()
            report(event, to, Path(tempfile.gettempdir()) / "penstock-claude-code")
            to.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
