"""What is wrong with an event's message: the slow and thorough look, taken once one is known to be bad."""

import math

from google.protobuf.message import Message

from controlplane.core.types import MOST_NAME

COUNT_BITS = (
    53  # counts and durations beyond that are nonsense (104 days), and their sums would overflow a snapshot
)

NAME_BITS = MOST_NAME.bit_length() - 1  # a power of two: see event_decoding
MOST_REASON = 1024
"""Characters of a reason that are read; the rest is left out."""

_REASON = "reason"
_REQUIRED = frozenset({"program_id", "turn_id", "call_id", "tool"})
_NOT_REQUIRED = frozenset({"CommandApplied.program_id", "CommandRejected.program_id", "TurnEnded.tool"})
_AT_LEAST_ONE = frozenset({"PoolSampled.block_tokens"})


def find_fault(message: Message) -> str:
    """The first field at fault, as ``.open_turns[2].blocks: expected >= 0, got -3``; empty if none is."""
    kind = message.DESCRIPTOR.name
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        values = enumerate(value) if field.is_repeated else ((None, value),)
        for index, item in values:
            if fault := _value_fault(kind, field.name, item, of_many=field.is_repeated):
                place = "" if index is None else f"[{index}]"
                return f".{field.name}{place}{fault}"
    return ""


def _value_fault(kind: str, field: str, value: object, *, of_many: bool) -> str:
    name = f"{kind}.{field}"
    if isinstance(value, Message):
        return find_fault(value)
    if isinstance(value, str):
        required = (field in _REQUIRED and name not in _NOT_REQUIRED) or of_many
        if len(value) > MOST_NAME and field != _REASON:
            return f": expected at most {MOST_NAME} characters, got {len(value)}"
        return ": expected a name, got an empty text" if required and not value else ""
    if isinstance(value, float) and not math.isfinite(value):
        return f": expected a finite number, got {value}"
    if isinstance(value, int | float):
        low = 1 if name in _AT_LEAST_ONE else 0
        if value < low:
            return f": expected >= {low}, got {value:g}"
        if isinstance(value, int) and value >= 1 << COUNT_BITS:
            return f": expected < 2**{COUNT_BITS}, got {value:g}"
    return ""
