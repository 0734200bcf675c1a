"""What is wrong with an event's message: the slow and thorough look, taken once one is known to be bad.

Of names only that they are empty: any other becomes a good one (``core.model.text``)."""

import math
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

COUNT_BITS = (
    53  # counts and durations beyond that are nonsense (104 days), and their sums would overflow a snapshot
)

MOST_REASON = 1024
"""Characters of a reason that are read; the rest is left out."""

REASON = "reason"
"""The name of texts that are for people: they are cut off rather than refused."""

_REQUIRED = frozenset({"program_id", "turn_id", "handoff", "call_id", "tool"})
_NOT_REQUIRED = frozenset(
    {"CommandApplied.program_id", "CommandRejected.program_id", "TurnEnded.tool", "ReplyRead.tool"}
)
_AT_LEAST_ONE = frozenset({"PoolSampled.block_tokens"})
_SHARE = "_ratio"


def is_required(field: FieldDescriptor) -> bool:
    """Whether the text must not be empty."""
    return field.name in _REQUIRED and _full(field) not in _NOT_REQUIRED


def least(field: FieldDescriptor) -> int:
    """The least that the count may be."""
    return int(_full(field) in _AT_LEAST_ONE)


def most(field: FieldDescriptor) -> float:
    """The most that the measure may be: each ratio that an event has is a share of a whole."""
    return 1.0 if field.name.endswith(_SHARE) else math.inf


def _full(field: FieldDescriptor) -> str:
    """``TurnEnded.tool``."""
    return field.full_name.removeprefix("penstock.v1.")


def find_fault(message: Message) -> str:
    """The first field at fault, as ``.open_turns[2].blocks: expected >= 0, got -3``; empty if none is."""
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        values = enumerate(value) if field.is_repeated else ((None, value),)
        for index, item in values:
            if fault := _value_fault(field, item):
                place = "" if index is None else f"[{index}]"
                return f".{field.name}{place}{fault}"
    return ""


def _value_fault(field: Any, value: object) -> str:
    if isinstance(value, Message):
        return find_fault(value)
    if isinstance(value, str):
        required = is_required(field) or field.is_repeated
        return ": expected a name, got an empty text" if required and not value else ""
    if isinstance(value, float) and not math.isfinite(value):
        return f": expected a finite number, got {value}"
    if isinstance(value, int | float):
        low = least(field)
        if value < low:
            return f": expected >= {low}, got {value:g}"
        if isinstance(value, int) and value >= 1 << COUNT_BITS:
            return f": expected < 2**{COUNT_BITS}, got {value:g}"
        if value > most(field):
            return f": expected <= {most(field):g}, got {value:g}"
    return ""
