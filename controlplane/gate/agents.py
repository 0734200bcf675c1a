"""Recognise the kind of agent behind a request by what its requests have in common: tools and instructions.

Two runs of the same agent are alike in length and growth, runs of different agents are not, and most clients do not
name their kind. The digest covers the tools' names and only the beginning of the instructions, since what changes
from run to run, such as the date, a folder or the task, comes later.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.gate.outlines import BILLING_HEADER

_INSTRUCTIONS = 64  # characters
_DIGEST = 8  # likewise


def kind_of_agent(body: Mapping[str, Any]) -> str:
    """A digest of the kind; empty if the request has neither tools nor instructions."""
    tools, instructions = sorted(_tool_names(body.get("tools"))), _instructions(body)[:_INSTRUCTIONS]
    if not tools and not instructions:
        return ""
    payload = json.dumps([tools, instructions]).encode()
    return hashlib.sha256(payload).hexdigest()[:_DIGEST]


def _tool_names(tools: object) -> list[str]:
    """The tools' names, in OpenAI's nested form or the flat one of Responses and Anthropic."""
    return [name for tool in (tools if isinstance(tools, list) else ()) if (name := tool_name(tool))]


def tool_name(tool: object) -> str:
    """Its name, or its type where it has none; empty for what is no tool."""
    if not isinstance(tool, Mapping):
        return ""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else tool.get("name") or tool.get("type")
    return name if isinstance(name, str) else ""


def _instructions(body: Mapping[str, Any]) -> str:
    """The agent's instructions before its task, wherever the API has them."""
    for name in ("instructions", "system"):
        if text := _text(_without_billing(body.get(name))):
            return text
    messages = body.get("messages", body.get("input"))
    first = messages[0] if isinstance(messages, list) and messages else None
    if isinstance(first, Mapping) and first.get("role") in ("system", "developer"):
        return _text(first.get("content"))
    return ""


def _without_billing(system: object) -> object:
    """Claude Code's first line differs with each request, and engines leave it out."""
    if not isinstance(system, list):
        return system
    return [part for part in system if not _text([part]).startswith(BILLING_HEADER)]


def _text(content: object) -> str:
    """The first text of a message's content: a string, or parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and content and isinstance(content[0], Mapping):
        text = content[0].get("text")
        return text if isinstance(text, str) else ""
    return ""
