"""What silence means: who is paused, who has ended, which publisher is gone.

A reply that calls no tool ends its program after a short silence. A gap with an open tool keeps the slot. Any other
gap (a person thinks, or an agent has no tool hooks) gives the slot back, keeps the arrival, and ends the program
after long silence. A publisher that holds work and stops talking is asked, and forgotten when it does not answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.core.commands import Command, Pause, StateRequest
from controlplane.core.errors import require
from controlplane.core.estimate import as_seconds
from controlplane.core.ledger import Ledger
from controlplane.core.publishers import lose, worth_asking
from controlplane.core.types import Program, Status, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceRules:
    """Limits in seconds."""

    end_after_reply_s: float = 5.0
    pause_after_s: float = 10.0
    pause_after_longest_gaps: float = 3.0
    end_after_s: float = 900.0
    ask_publisher_after_s: float = 60.0
    ask_publisher_every_s: float = 10.0
    ask_publisher_times: int = 3

    def __post_init__(self) -> None:
        for name in ("end_after_reply_s", "pause_after_s", "end_after_s", "ask_publisher_after_s"):
            require(name, getattr(self, name), low=0, high=86_400, ends="(]")
        require("ask_publisher_every_s", self.ask_publisher_every_s, low=0, high=86_400, ends="(]")
        require("pause_after_longest_gaps", self.pause_after_longest_gaps, low=0, high=1000)
        require("ask_publisher_times", self.ask_publisher_times, low=1, high=1000)


def sweep(ledger: Ledger, rules: SilenceRules, now_ns: int) -> Iterator[Command]:
    """Once a control interval: end and pause silent programs, ask silent publishers."""
    for name in sorted(ledger.active):
        program = ledger.programs[name]
        if program.status is not Status.ACTIVE or not program.idle_since_ns:
            continue
        silent_ns = now_ns - program.idle_since_ns
        if _family_is_busy(ledger, program):
            continue
        if program.may_end and silent_ns >= seconds(rules.end_after_reply_s):
            ledger.end(program, now_ns, "its last reply called no tool")
        elif program.parent_id:
            continue  # a child holds no slot
        elif silent_ns >= _patience_ns(program, rules):
            yield Pause(program_id=name, reason=f"silent for {as_seconds(silent_ns):.0f}s with no tool open")
    holding = {held.program_id for held in ledger.state.held.values()}  # a child waits with its root
    for name in list(ledger.dormant):
        program = ledger.programs[name]
        silent = now_ns - program.last_seen_ns >= seconds(rules.end_after_s)
        if silent and not program.open_tools and name not in holding:
            ledger.end(program, now_ns, "long silence")
    yield from _ask_silent_publishers(ledger, rules, now_ns)


def _patience_ns(program: Program, rules: SilenceRules) -> int:
    own_ns = round(rules.pause_after_longest_gaps * program.longest_gap_ns)
    return max(seconds(rules.pause_after_s), own_ns)


def _family_is_busy(ledger: Ledger, root: Program) -> bool:
    family = (ledger.programs.get(name) for name in ledger.children_of(root.program_id))
    return any(child is not None and (child.open_turns or child.open_tools) for child in family)


def _ask_silent_publishers(ledger: Ledger, rules: SilenceRules, now_ns: int) -> Iterator[Command]:
    for publisher in sorted(worth_asking(ledger)):
        sequence = ledger.state.sequences[publisher]
        if now_ns - sequence.heard_at_ns < seconds(rules.ask_publisher_after_s):
            continue
        if now_ns - sequence.asked_at_ns < seconds(rules.ask_publisher_every_s):
            continue
        if sequence.unanswered >= rules.ask_publisher_times:
            lose(ledger, publisher, now_ns)
            continue
        sequence.asked_at_ns = now_ns
        sequence.unanswered += 1
        yield StateRequest(publisher=publisher, reason="it holds work and went silent")
