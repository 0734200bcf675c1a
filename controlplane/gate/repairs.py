"""Repairs of prompts that would be computed again, as an operator asks for them: nothing else of a request changes.

``tools``: tools are sent in the order of their names, whatever the client's; a breakpoint of the cache stays at its
place. ``heads``: lines of the system prompt that change by themselves do not stand before all else any more.
Claude Code's billing line is left out; a line whose time, count or id was seen to change within its program goes to
the end of the last message, unless that is the model's own, which it is to go on with.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from controlplane.core.model.errors import ConfigError
from controlplane.gate.agents import tool_name
from controlplane.gate.bodies import with_values
from controlplane.gate.outlines import BILLING_HEADER, MOST_LOOKED_AT, VOLATILE

REPAIR_VARIABLE = "PENSTOCK_REPAIR"
REPAIRS = ("tools", "heads")
_MOST_PROGRAMS = 8192  # whose lines are known; the one that was silent for longest is forgotten
_MOST_LINES = 64  # of a program, that may change
_MOST_TEXT = 1 << 18  # characters of a system prompt: of a longer one the rest stays as it is
_CHANGES = 0
_MARKER = "cache_control"
_HEADS = ("system", "instructions")
_SYSTEM_ROLES = ("system", "developer")
_NOTED_ROLES = ("user", "tool")
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

    def sent_on(self, program_id: str, body: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """As ``repair``, with the bytes that are to be sent in place of ``data``, which came; none: those are."""
        made = self.repair(program_id, body)
        if made is body:
            return body, b""
        return made, with_values(data, made, [name for name in made if made[name] is not body[name]])

    def _without_heads(self, program_id: str, body: dict[str, Any]) -> dict[str, Any]:
        moved: list[str] = []
        seen = self._seen.setdefault(program_id, {})
        self._seen.move_to_end(program_id)
        if len(self._seen) > _MOST_PROGRAMS:
            self._seen.popitem(last=False)

        messages = body.get("messages")
        movable, left = _takes_note(messages), _MOST_TEXT

        def still(text: str) -> str:
            nonlocal left
            left -= len(text)
            return text if left < 0 else _kept(text, seen, moved, movable=movable)

        made: dict[str, Any] = {name: _edited(body[name], still) for name in _HEADS if name in body}
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
        is_short = len(line) <= MOST_LOOKED_AT
        if movable and is_short and (found := VOLATILE.search(line)) is not None and found.lastgroup != "date":
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


def _takes_note(messages: Any) -> bool:
    """Whether lines may go behind the last message: what an assistant has begun to say they would be part of."""
    last = messages[-1] if isinstance(messages, list) and messages else None
    return (
        isinstance(last, dict) and last.get("role") in _NOTED_ROLES and isinstance(last.get("content"), str | list)
    )


def _with_note(message: dict[str, Any], lines: list[str]) -> dict[str, Any]:
    """The message with these lines behind all that it has."""
    content, note = message["content"], "\n".join(lines)
    if isinstance(content, str):
        return message | {"content": f"{content}\n\n{note}"}
    return message | {"content": [*content, {"type": "text", "text": note}]}


def _in_order(body: Mapping[str, Any]) -> dict[str, Any]:
    """The tools by their names, where each has one; those of one name stay in their order."""
    made = {}
    for field in ("tools", "functions"):
        tools = body.get(field)
        if not isinstance(tools, list):
            continue
        names = [tool_name(each) for each in tools]
        if all(names) and names != sorted(names):
            ordered = [tools[at] for at in sorted(range(len(names)), key=names.__getitem__)]
            made[field] = [_marked(tool, like) for tool, like in zip(ordered, tools, strict=True)]
    return made


def _marked(tool: dict[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """The tool with the marker of that which stood at its place: it marks a place in the prompt."""
    if tool.get(_MARKER) == like.get(_MARKER):
        return tool
    bare = {name: value for name, value in tool.items() if name != _MARKER}
    return bare | {_MARKER: like[_MARKER]} if _MARKER in like else bare
