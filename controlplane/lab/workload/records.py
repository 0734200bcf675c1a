"""What was measured of one turn and of one program, simulated or live."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Which of several engines a turn went to."""

    replica: str
    choice: str  # ``core.policies.protocols.Choice``
    cost_ns: int  # that was expected of it: waiting, moving, computing anew
    moved_tokens: int = 0  # whose KV another engine sent


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One model call as its client saw it. Times are one clock's; TTFT counts the hold at the gate."""

    program_id: str
    index: int
    queued_ns: int  # the client sent it
    admitted_ns: int | None = None  # it went to the engine; None where that was not seen
    first_token_ns: int = 0  # 0: none was seen
    ended_ns: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    counted: bool = True  # False: the engine told no usage, and the tokens are what the trace asks for
    cache_counted: bool = True  # False: it did not tell how many were cached
    hold_ns: int = 0  # held at the gate
    error: str = ""
    routed: Routed | None = None  # None where there was one engine
    attempts: int = 1  # more: it was sent again after an engine died that had it
    refusals: int = 0  # how often it was refused before: 429 and 503


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """One program, from its arrival to its end."""

    program_id: str
    arrived_ns: int
    ended_ns: int
    turns: int  # that ended well
    ideal_ns: int = 0  # its completion time alone on the same engine; 0: not known
    failed: bool = False
    error: str = ""
    tenant: str = ""
    parent_id: str = ""  # whose sub-agent it was

    @property
    def completion_ns(self) -> int:
        """JCT: from arrival to end."""
        return self.ended_ns - self.arrived_ns
