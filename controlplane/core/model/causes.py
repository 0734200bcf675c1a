"""Why a prompt's beginning was computed again: its client changed it, or its context was not there any more."""

from dataclasses import dataclass, fields
from enum import StrEnum


class Cause(StrEnum):
    """Why a context was not found, or why a pin ended. From ``MODEL`` on the client is the reason."""

    NONE = ""
    TTL_SHORT = "ttl_short"  # the program came back after its pin had ended
    HELD = "held"  # it came back in time, and was held until its pin had ended
    RECLAIMED = "reclaimed"  # the engine gave the pin up for a turn that needed room
    PRESSURE = "pressure"  # others took its room, and no pin was in force
    RELEASED = "released"
    DEMOTED = "demoted"
    DISCARDED = "discarded"
    PAUSED = "paused"
    MOVED = "moved"  # its turn ran on another engine
    ENGINE_GONE = "engine_gone"  # the engine ended or began anew, and its memory with it
    FLUSHED = "flushed"  # the engine emptied its cache, as for new weights
    RETRACTED = "retracted"  # the engine threw the running turn out, for lack of room
    MODEL = "model_changed"
    SYSTEM = "system_changed"
    VOLATILE = "volatile_head"  # of the system prompt only a time, a count or an id differs, or a billing line
    TOOLS = "tools_changed"
    TOOLS_ADDED = "tools_added"
    TOOLS_REMOVED = "tools_removed"
    TOOLS_REORDERED = "tools_reordered"
    EDITED = "message_edited"
    DROPPED = "message_dropped"
    INSERTED = "message_inserted"
    COMPACTED = "compacted"  # a shorter text stands for many messages
    RESULT = "tool_result_changed"
    IMAGE = "image_changed"
    REASONING = "reasoning_stripped"
    REPLY = (
        "reply_changed"  # the last reply did not come back as it was computed, as where its reasoning is left out
    )


CLIENT_CAUSES = frozenset(list(Cause)[list(Cause).index(Cause.MODEL) :])
"""Those that are the client's, or its chat template's; the others are the scheduler's."""


def side_of(cause: Cause) -> str:
    """Who could have spared it: the client, or the scheduler."""
    return "client" if cause in CLIENT_CAUSES else "scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a gate says of a turn's prompt beside an earlier one of its program.

    ``client``: name and version of who asks. ``continues``: the turn that it was compared with; empty: with none.
    ``kept_ratio`` of that prompt is in front of the first difference, which ``change`` (one of ``CLIENT_CAUSES``)
    names, and ``change_at`` its place. Both are empty where the prompt goes on from that one, or has nothing in
    common with it (a ratio of 0).
    """

    client: str = ""
    continues: str = ""
    kept_ratio: float = 0.0
    change: str = ""
    change_at: str = ""


CHANGE_FIELDS = tuple(each.name for each in fields(Change))
"""An event carries a change as fields of these names."""
