"""Which tools a reply calls, read from its text: for agents whose API or model does not say so in fields.

**Paper**: Continuum §5.1, appendices A and B. A parser takes the whole reply and returns the names in their order;
none where it finds no call of its form.

To add a parser: one function here, one line in ``PARSERS``.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from controlplane.core.model.types import MOST_NAME
from controlplane.tool_calls.shell_commands import command_name, command_names

MOST_CHARACTERS = 200_000  # what is longer is no tool call but a document
_LONGEST_NAME = 128

_SHELL_TOOLS = frozenset(  # of Claude Code, Codex, OpenHands, Cline, Gemini, Cursor, Copilot, Continue, goose, ...
    {"bash", "shell", "sh", "terminal", "execute_bash", "execute_command", "run_bash", "run_command", "run_shell"}
    | {"run_shell_command", "run_terminal_cmd", "run_terminal_command", "run_in_terminal", "exec_command"}
    | {
        "shell_command",
        "execute_shell_command",
        "local_shell",
        "local_shell_call",
        "unified_exec",
        "container.exec",
    }
)
_COMMAND_FIELDS = ("command", "commands", "cmd", "script")
_SHELL = "bash"  # what a script is called that names no program
_MOST_CALLS = 256  # of a reply; more are no calls
_WORD = re.compile(r"\w")
_BASH_BLOCK = re.compile(r"```(?:bash|sh|shell)[ \t\r]*\n")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_QWEN = re.compile(r"<tool_call>")
_QWEN_FUNCTION = re.compile(r"<function=([^>\s]+)>")
_PYTHON_CALL = re.compile(r"([A-Za-z_][\w.]*)\s*\(")
_PYTHON_TAG = "<|python_tag|>"


def tools_called(text: str) -> tuple[str, ...]:
    """The tools that the reply calls, by the first parser that finds any; empty for none."""
    if len(text) > MOST_CHARACTERS:
        return ()
    for parse in PARSERS:
        names = tuple(name for name in parse(text) if 0 < len(name) <= _LONGEST_NAME)
        if names:
            return names
    return ()


def called_name(tool: str, arguments: object) -> str:
    """What a call counts as: one of a shell's as the program that its command runs, any other by its own name.

    ``arguments``: by name, or as JSON. Nothing of them but the program's name is in the answer, nor more of a name
    than 256 characters: a model may write anything.
    """
    return _called_name(tool, arguments)[:MOST_NAME]


def _called_name(tool: str, arguments: object) -> str:
    if tool.lower().rpartition("__")[2] not in _SHELL_TOOLS:  # an MCP server's: ``developer__shell``
        return tool
    parsed = _json_object(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(parsed, Mapping):
        return tool
    if isinstance(parsed.get("action"), Mapping):  # as the Responses API's local shell has it
        parsed = parsed["action"]
    command = next((parsed[field] for field in _COMMAND_FIELDS if parsed.get(field)), "")
    if isinstance(command, list | tuple) and all(isinstance(each, str) for each in command):
        # Either one command's words, as a program is started, or several commands.
        command = "\n".join(command) if " " in command[0].strip() else shlex.join(command)
    return (command_name(command) if isinstance(command, str) else "") or tool


def bash_block(text: str) -> Sequence[str]:
    """A single fenced bash block: the programs that it runs. Two blocks are none, as in mini-swe-agent."""
    blocks = list(_between(_BASH_BLOCK, "```", text))
    if len(blocks) != 1:
        return ()
    return command_names(blocks[0]) or ([_SHELL] if _WORD.search(blocks[0]) else [])


def _between(opens: re.Pattern[str], closes: str, text: str) -> Iterator[str]:
    """What stands between marks, in time linear in the text: a model may write anything."""
    at = 0
    while (found := opens.search(text, at)) is not None:
        end = text.find(closes, found.end())
        if end < 0:
            return
        yield text[found.end() : end].strip()
        at = end + len(closes)


def json_commands(text: str) -> Sequence[str]:
    """A JSON object with ``commands``, each with ``keystrokes``: the program of each (Terminal-Bench)."""
    value = _json_object(text)
    commands = value.get("commands") if value is not None else None
    if not isinstance(commands, list):
        return ()
    typed = (command.get("keystrokes") for command in commands if isinstance(command, dict))
    return [command_name(keys) or _SHELL for keys in typed if isinstance(keys, str) and keys.strip()]


def qwen(text: str) -> Sequence[str]:
    """``<tool_call>{"name": ..., "arguments": ...}</tool_call>``, or ``<function=name>`` inside it."""
    return [name for inside in _between(_QWEN, "</tool_call>", text) for name in _qwen_names(inside)]


def _qwen_names(inside: str) -> list[str]:
    value = _json_object(inside)
    if value is not None:
        return [value["name"]] if isinstance(value.get("name"), str) else []
    return _QWEN_FUNCTION.findall(inside)


def llama(text: str) -> Sequence[str]:
    """``[f(x=1), g()]``, ``f(x=1)``, ``<function=f>{...}</function>``, or JSON with ``name`` and ``parameters``.

    The call must be all of the reply, or follow ``<|python_tag|>``: prose has brackets, too.
    """
    tagged = _PYTHON_TAG in text
    body = text.rsplit(_PYTHON_TAG, 1)[-1].strip()
    if body.startswith("<function="):
        return _QWEN_FUNCTION.findall(body)
    value = _json_object(body)
    if value is not None:
        name = value.get("name")
        return [name] if isinstance(name, str) and ("parameters" in value or "arguments" in value) else ()
    if body.startswith("[") and body.endswith("]"):
        body = body[1:-1].strip()
    elif not tagged and "\n" in body:
        return ()
    return list(_python_calls(body))


def _python_calls(body: str) -> Iterator[str]:
    """Names of ``f(...), g(...)`` if that is all there is."""
    bare = _QUOTED.sub("_", body)
    names: list[str] = []
    at = 0
    while at < len(bare) and len(names) < _MOST_CALLS:
        found = _PYTHON_CALL.match(bare, at)
        end = _closing(bare, found.end()) if found is not None else -1
        if found is None or end < 0:
            return
        names.append(found[1])
        at = end
        while at < len(bare) and bare[at] in " ,;\n":
            at += 1
    yield from names


def _closing(text: str, start: int) -> int:
    """The index behind the bracket that closes the one before ``start``; -1 without one."""
    depth = 1
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index + 1
    return -1


def _json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that the text is, or that its only fenced block holds."""
    body = text.strip()
    if body.startswith("```") and body.endswith("```") and body.count("```") == 2:
        body = body.strip("`").strip().removeprefix("json").strip()
    if not body.startswith("{") or len(body) > MOST_CHARACTERS:
        return None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


PARSERS: tuple[Callable[[str], Sequence[str]], ...] = (bash_block, json_commands, qwen, llama)
"""In the order in which they are tried."""
