"""One line of a trace, as it is written."""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from controlplane.core.model.text import sanitize

THINK_TIME = "human"
MOST_TOOL_MS = 366 * 86_400_000.0  # a year: a run that waits longer would not end
_Count = Annotated[int, msgspec.Meta(ge=1)]
_CountOrZero = Annotated[int, msgspec.Meta(ge=0)]
_Duration = Annotated[float, msgspec.Meta(ge=0, le=MOST_TOOL_MS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call and the gap after it. ``tool_ms`` is None where there is no gap or it is not known."""

    input_tokens: int
    output_tokens: int
    tool: str = ""
    tool_ms: float | None = None
    cached_prefix_tokens: int | None = None
    rewrites: bool = False  # its prompt begins like none before it, though it may be longer

    @property
    def calls_tool(self) -> bool:
        """Whether a tool runs in the gap; a person's think time is no tool."""
        return self.tool_ms is not None and self.tool not in ("", THINK_TIME)


class TurnLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A turn as it is written; null is as good as nothing."""

    input_tokens: _Count
    output_tokens: _Count
    tool: str | None = None
    tool_ms: _Duration | None = None
    cached_prefix_tokens: _CountOrZero | None = None
    rewrites: bool | None = None

    def turn(self) -> Turn:
        return Turn(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            tool=sanitize(self.tool or ""),
            tool_ms=self.tool_ms,
            cached_prefix_tokens=self.cached_prefix_tokens,
            rewrites=bool(self.rewrites),
        )


class ProgramLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A program as it is written."""

    program_id: Annotated[str, msgspec.Meta(min_length=1)]
    source: str = ""
    turns: Annotated[tuple[TurnLine, ...], msgspec.Meta(min_length=1)]
    parent_id: str | None = None
    spawn_turn: _CountOrZero | None = None
    family_tokens: _CountOrZero | None = None


class BadProgram(Exception):
    """A line that is no program; the message names the field."""


def within(program: ProgramLine, max_context_tokens: int | None) -> ProgramLine:
    """The program, if no context of it is longer. Raises ``BadProgram``."""
    for index, turn in enumerate(program.turns):
        context_tokens = turn.input_tokens + turn.output_tokens
        if max_context_tokens is not None and context_tokens > max_context_tokens:
            raise BadProgram(
                f"turns[{index}].input_tokens: expected a prompt and output of <= {max_context_tokens} tokens, "
                f"got {context_tokens}"
            )
    return program
