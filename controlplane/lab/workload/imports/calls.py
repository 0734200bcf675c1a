"""A session as it is read: its model calls, which become a program's turns.

Tokens are the server's own count where the file has it. Where it has none they are guessed from the text's size, as
a gate guesses what no engine has counted yet. A gap is the time from a reply's end to the next request. It is the
tool's, or ``human`` where a person's message began that request.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from controlplane.core.estimators.prompt_size import PromptSize, PromptSizes
from controlplane.core.model.text import sanitize
from controlplane.lab.workload.imports.fields import Fields
from controlplane.lab.workload.trace_lines import (
    MOST_TOOL_MS,
    THINK_TIME,
    BadProgram,
    ProgramLine,
    TurnLine,
)

_SIZES = PromptSizes()
_CACHED = (
    "cache_read_input_tokens",
    "cached_input_tokens",
    "cache_read_tokens",
    "prompt_tokens_details.cached_tokens",
    "input_tokens_details.cached_tokens",
)
_COUNTS = (
    *("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "cache_creation_input_tokens"),
    *_CACHED,
)


def tokens_of(*parts: Any) -> int:
    """A guess, in tokens, of what messages or their contents hold, each in any API's form."""
    from controlplane.gate.sizing import measure  # most of a gate, which every command would load for its help

    prompt = measure({"messages": list(parts)})
    image, audio, video, file = prompt.media[-1] if prompt.media else (0, 0, 0, 0)
    size = PromptSize(
        continues="what was before it",
        shared_ratio=1.0,
        new_bytes=prompt.text_bytes,
        image_tokens=image,
        audio_tokens=audio,
        video_tokens=video,
        file_tokens=file,
    )
    return ceil(_SIZES.estimate(size, "", 1).tokens - 1)


@dataclass(slots=True, kw_only=True)
class Call:
    """One model call. Tokens: 0 where nobody counted; times in seconds, by any clock that the session keeps."""

    input_tokens: int = 0  # the whole prompt
    output_tokens: int = 0
    cached_tokens: int | None = None
    new_guess: int = 0  # tokens by their text: of the prompt behind the context that was there before it
    reply_guess: int = 0
    sent_s: float | None = None
    ended_s: float | None = None
    tools: tuple[str, ...] = ()
    tool_ms: float | None = None  # where the file says it; else by the times
    by_person: bool = False  # a person's message began it, and no tool's result
    rewrites: bool = False

    def count(self, usage: Fields, path: str) -> None:
        """Take what was used, under any of the names that it has in an API.

        Of several counts of one reply the largest holds: one may be of its beginning. What is cached is counted
        beside ``input_tokens`` in Anthropic's API, and with them in all others.
        """
        if not usage.any(path):
            return
        counts = {name: usage.count(f"{path}.{name}") for name in _COUNTS}
        beside = counts["cache_creation_input_tokens"] + counts["cache_read_input_tokens"]
        prompt = counts["prompt_tokens"] or counts["input_tokens"] + beside
        self.input_tokens = max(self.input_tokens, prompt)
        self.output_tokens = max(self.output_tokens, counts["completion_tokens"] or counts["output_tokens"])
        self.cached_tokens = next(
            (counts[name] for name in _CACHED if usage.any(f"{path}.{name}") is not None), self.cached_tokens
        )


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was read, and what of it was guessed."""

    programs: dict[str, int] = field(default_factory=dict)  # by format
    turns: int = 0
    prompts: int = 0  # whose tokens are guessed
    replies: int = 0
    people: int = 0  # gaps in which a person thinks
    unknown: int = 0  # gaps of no known length
    inexact: int = 0  # gaps that hold the reply's own time
    children: int = 0
    beside: int = 0  # sub-agents for which their parent did not wait
    alone: int = 0  # sub-agents whose parent is not there

    def add(self, source: str, turns: int) -> None:
        """Count a program."""
        self.programs[source] = self.programs.get(source, 0) + 1
        self.turns += turns


@dataclass(slots=True, kw_only=True)
class Session:
    """One program, with its calls in order: what the next prompt gets is told with ``ask``, then the reply."""

    program_id: str
    source: str
    path: Path
    parent_id: str = ""
    spawn_turn: int = 0
    calls: list[Call] = field(default_factory=list)
    next: Call = field(default_factory=Call)
    reply_id: object = None

    def ask(self, at_s: float | None, *texts: Any, person: bool = False, rewrites: bool = False) -> None:
        """The next prompt gets these texts, in any API's form. ``rewrites``: its history is a new one."""
        call = self.next
        call.sent_s = at_s if at_s is not None else call.sent_s
        call.new_guess += tokens_of(*texts)
        call.by_person |= person and bool(self.calls)
        call.rewrites |= rewrites

    def reply(self, at_s: float | None, *texts: Any, tools: Iterable[str] = (), reply_id: object = None) -> Call:
        """A reply, or more of the last one if it has the same id; what was used can be counted on it."""
        if reply_id is None or reply_id != self.reply_id:
            self.calls.append(self.next)
            self.next = Call()
        self.reply_id = reply_id
        call = self.calls[-1]
        call.ended_s = at_s if at_s is not None else call.ended_s
        call.reply_guess += tokens_of(*texts)
        call.tools += tuple(tools)
        return call

    def line(self, tally: Tally) -> ProgramLine:
        """As a trace has it. Raises ``BadProgram`` where it has no calls, or one whose prompt nothing tells."""
        if not self.calls:
            raise BadProgram(f"session {self.program_id!r} has no model call")
        turns: list[TurnLine] = []
        context, guessed = 0, Tally()
        for index, call in enumerate(self.calls):
            prompt = call.input_tokens or (0 if call.rewrites else context) + call.new_guess
            if not prompt:
                raise BadProgram(
                    f"session {self.program_id!r}, call {index}: no usage, and no text to guess it from"
                )
            reply = max(1, call.output_tokens or call.reply_guess)
            guessed.prompts += not call.input_tokens
            guessed.replies += not call.output_tokens
            tool, tool_ms = _gap(self.calls, index, guessed)
            turn = TurnLine(
                input_tokens=prompt,
                output_tokens=reply,
                tool=sanitize(tool) or None,
                tool_ms=tool_ms,
                cached_prefix_tokens=call.cached_tokens,
                rewrites=call.rewrites or None,
            )
            turns.append(turn)
            context = prompt + reply
        for name in ("prompts", "replies", "people", "unknown", "inexact"):
            setattr(tally, name, getattr(tally, name) + getattr(guessed, name))
        tally.add(self.source, len(turns))
        tally.children += bool(self.parent_id)
        return ProgramLine(
            program_id=sanitize(self.program_id),
            source=self.source,
            turns=tuple(turns),
            parent_id=sanitize(self.parent_id) or None,
            spawn_turn=self.spawn_turn if self.parent_id else None,
        )


def _gap(calls: Sequence[Call], index: int, tally: Tally) -> tuple[str, float | None]:
    """What fills the time behind that call, and its length in milliseconds."""
    call = calls[index]
    if index == len(calls) - 1:
        return "", None
    after = calls[index + 1]
    tool = THINK_TIME if after.by_person else "+".join(dict.fromkeys(call.tools))
    begin = call.sent_s if call.ended_s is None else call.ended_s
    gap_ms = call.tool_ms
    if gap_ms is None and begin is not None and after.sent_s is not None:
        gap_ms = max(0.0, round(1e3 * (after.sent_s - begin), 3))
        tally.inexact += call.ended_s is None
    if gap_ms is not None and not 0 <= gap_ms <= MOST_TOOL_MS:
        gap_ms = None
    tally.unknown += gap_ms is None
    tally.people += after.by_person
    return tool, gap_ms
