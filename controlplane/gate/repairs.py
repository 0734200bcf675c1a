"""Repairs of prompts that would be computed again, as an operator asks for them: nothing else of a request changes.

``tools``: tools are sent in the order of their names, whatever the client's. ``heads``: lines of the system prompt
that change by themselves do not stand before all else any more. Claude Code's billing line is left out; a line
whose time, count or id was seen to change within its program goes to the end of the last message.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from controlplane.core.model.errors import ConfigError
from controlplane.gate.agents import tool_name
from controlplane.gate.outlines import BILLING_HEADER, VOLATILE

REPAIR_VARIABLE = "PENSTOCK_REPAIR"
REPAIRS = ("tools", "heads")
_MOST_PROGRAMS = 8192  # whose lines are known; the one that was silent for longest is forgotten
_MOST_LINES = 64  # of a program, that may change
_CHANGES = 0
_HEADS = ("system", "instructions")
_SYSTEM_ROLES = ("system", "developer")
_Lines = Callable[[str], str]


def repairs_in(texts: Mapping[str, str]) -> frozenset[str]:
    """Those that ``REPAIR_VARIABLE`` names, with commas between. Raises ``ConfigError``."""
    asked = frozenset(filter(None, (each.strip() for each in texts.get(REPAIR_VARIABLE, "").split(","))))
    if unknown := sorted(asked - set(REPAIRS)):
        expected = f"{REPAIR_VARIABLE}: expected tools, heads or tools,heads, got {unknown[0][:80]!r}"
        raise ConfigError(expected, field=REPAIR_VARIABLE)
    return asked


class Repairer:
    """Makes the repairs that are asked for. Use it in one event loop."""

    def __init__(self, asked: frozenset[str] = frozenset()) -> None:
        self._asked = asked
        self.repaired = 0  # requests
        self._seen: OrderedDict[str, dict[int, int]] = OrderedDict()  # lines by digest, without what changes

    def repair(self, program_id: str, body: dict[str, Any]) -> dict[str, Any]:
        """The request as it is to be sent on; the same object where nothing is to be repaired."""
        made: dict[str, Any] = {}
        if "tools" in self._asked:
            made |= _in_order(body)
        if "heads" in self._asked:
            made |= self._without_heads(program_id, body)
        if not made:
            return body
        self.repaired += 1
        return body | made

    def sent_on(self, program_id: str, body: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """As ``repair``, with the bytes that are to be sent in place of those that came; none: those are."""
        made = self.repair(program_id, body)
        return made, b"" if made is body else _encoded(made)

    def _without_heads(self, program_id: str, body: dict[str, Any]) -> dict[str, Any]:
        moved: list[str] = []
        seen = self._seen.setdefault(program_id, {})
        self._seen.move_to_end(program_id)
        if len(self._seen) > _MOST_PROGRAMS:
            self._seen.popitem(last=False)

        def still(text: str) -> str:
            return _kept(text, seen, moved, movable=bool(body.get("messages")))

        made: dict[str, Any] = {name: _edited(body[name], still) for name in _HEADS if name in body}
        messages = body.get("messages")
        if isinstance(messages, list) and messages:
            first = messages[0]
            if isinstance(first, dict) and first.get("role") in _SYSTEM_ROLES and "content" in first:
                messages = [first | {"content": _edited(first["content"], still)}, *messages[1:]]
            made["messages"] = [*messages[:-1], _with_note(messages[-1], moved)] if moved else messages
        return {name: value for name, value in made.items() if value != body[name]}


def _kept(text: str, seen: dict[int, int], moved: list[str], *, movable: bool) -> str:
    """The text without its billing line, and without lines that were seen to change, which are ``moved``."""
    kept: list[str] = []
    for line in text.split("\n"):
        if line.startswith(BILLING_HEADER):
            continue
        if movable and (found := VOLATILE.search(line)) is not None and found.lastgroup != "date":
            rest, now = hash(VOLATILE.sub("", line)), hash(line) or 1
            before = seen.get(rest, now)
            if rest in seen or len(seen) < _MOST_LINES:
                seen[rest] = before if before == now else _CHANGES
            if seen.get(rest) == _CHANGES:
                moved.append(line)
                continue
        kept.append(line)
    return "\n".join(kept)


def _edited(value: Any, edit: _Lines) -> Any:
    """A system prompt, or a block of it; blocks of which nothing is left go."""
    if isinstance(value, str):
        return edit(value)
    if isinstance(value, list):
        blocks = [_edited(each, edit) if isinstance(each, dict) else each for each in value]
        return [block for block in blocks if block is not None]
    if isinstance(value, dict) and isinstance(text := value.get("text"), str):
        left = edit(text)
        return value if left == text else value | {"text": left} if left else None
    return value


def _with_note(message: Any, lines: list[str]) -> Any:
    """The message with these lines behind all that it has."""
    if not isinstance(message, dict):
        return message
    content, note = message.get("content"), "\n".join(lines)
    if isinstance(content, str):
        return message | {"content": f"{content}\n\n{note}"}
    if isinstance(content, list):
        return message | {"content": [*content, {"type": "text", "text": note}]}
    return message


def _in_order(body: Mapping[str, Any]) -> dict[str, Any]:
    """The tools by their names, where each has one; those of one name stay in their order."""
    made = {}
    for field in ("tools", "functions"):
        tools = body.get(field)
        if not isinstance(tools, list):
            continue
        names = [tool_name(each) for each in tools]
        if all(names) and names != sorted(names):
            made[field] = [tools[at] for at in sorted(range(len(names)), key=names.__getitem__)]
    return made


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:  # half a surrogate pair
        return json.dumps(body).encode()
