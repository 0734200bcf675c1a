"""What is measured of a slice: of programs that came in it how long they took, of turns their first tokens.

A program counts in the slice in which it came, and with ``washout_s`` at most: who was not done by then was all the
same alone with that slice's policies for so long. Leaving out who lived over the switch would leave out more of the
arm that is slower, and the longest of it (a restricted mean, as survival analysis has it). What it asked for is
known once it has ended, whichever slice that is in.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import log2
from typing import Any

from controlplane.core.experiment.slices import Slices
from controlplane.core.model import events as ev
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, seconds

_NOT_COUNTED = -1
# An output token's weight beside a second of the program's own: any one is right, a better one has less noise.
_TOKEN_S = 0.02
_STEPS = 32  # of an octave: times are known to 2%
_LEAST_NS = 1_000_000


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Sums of one slice. ``first_tokens``: how many turns took 2^(key/32) ms to their first token."""

    programs: int = 0
    censored: int = 0  # of these: not done within the washout
    completion_s: float = 0.0
    asked_s: float = 0.0
    prompt_tokens: int = 0
    again_tokens: int = 0
    first_tokens: dict[int, int] = field(default_factory=dict)

    def first_token_s(self, share: float) -> float:
        """The time within which that share of the turns had their first token; 0 where there is none."""
        left = share * sum(self.first_tokens.values())
        for key in sorted(self.first_tokens):
            left -= self.first_tokens[key]
            if left <= 0:
                return float(2.0 ** (key / _STEPS)) * _LEAST_NS / NANOSECONDS_PER_SECOND
        return 0.0


@dataclass(slots=True, kw_only=True)
class Seen:
    """A program that has not ended."""

    came_ns: int
    slice: int = _NOT_COUNTED
    asked_ns: int = 0  # when its turn was asked for; 0: none is open
    waits_for_token: bool = False
    done_ns: int = 0  # when its last turn ended; 0: none did
    is_cut: bool = False  # its last turn failed or was abandoned
    context_tokens: int = 0
    own_ns: int = 0  # between its turns: its tools' and its client's time
    output_tokens: int = 0


class Outcomes:
    """Hears events and fills ``outcomes`` by slice. ``programs``: who was seen and has not ended."""

    def __init__(self, slices: Slices, outcomes: dict[int, Outcome], programs: dict[str, Seen]) -> None:
        self._slices, self._outcomes, self._programs = slices, outcomes, programs
        self._takes: dict[type[ev.Event], Callable[[Any, int], object]] = {
            ev.ProgramArrived: self._came,
            ev.TurnQueued: self._asked,
            ev.TurnSubmitted: self._asked,
            ev.TurnAbandoned: self._abandoned,
            ev.FirstToken: self._first_token,
            ev.TurnEnded: self._turn_ended,
            ev.ProgramEnded: self._ended,
        }

    def event(self, event: ev.Event, now_ns: int) -> None:
        if (take := self._takes.get(type(event))) is not None:
            take(event, now_ns)

    def settle(self, before: int) -> None:
        """Count who came in a slice ``before`` that one and has not told of an end; and forget it."""
        for name, seen in list(self._programs.items()):
            if self._slices.at(max(seen.came_ns, seen.asked_ns, seen.done_ns)) < before:
                self._count(self._programs.pop(name), 0 if seen.asked_ns else seen.done_ns)
            elif _NOT_COUNTED < seen.slice < before:
                self._count(seen, 0 if seen.asked_ns else seen.done_ns)
                seen.slice = _NOT_COUNTED

    def _came(self, event: ev.ProgramArrived | ev.TurnQueued | ev.TurnSubmitted, now_ns: int) -> Seen:
        seen = self._programs.get(event.program_id)
        if seen is None:
            counts = self._slices.counts(now_ns) and not getattr(event, "parent_id", "")
            number = self._slices.at(now_ns) if counts else _NOT_COUNTED
            seen = self._programs[event.program_id] = Seen(came_ns=now_ns, slice=number)
        return seen

    def _asked(self, event: ev.TurnQueued | ev.TurnSubmitted, now_ns: int) -> None:
        seen = self._came(event, now_ns)
        if seen.asked_ns:
            return  # held until now, or asked for again
        seen.asked_ns, seen.waits_for_token = now_ns, True
        if seen.done_ns:
            seen.own_ns += now_ns - seen.done_ns

    def _abandoned(self, event: ev.TurnAbandoned, now_ns: int) -> None:
        if (seen := self._programs.get(event.program_id)) is not None and seen.asked_ns:
            seen.asked_ns, seen.done_ns, seen.is_cut = 0, now_ns, True

    def _first_token(self, event: ev.FirstToken, now_ns: int) -> None:
        seen = self._programs.get(event.program_id)
        if seen is None or not seen.asked_ns or not seen.waits_for_token:
            return
        seen.waits_for_token = False
        if not self._slices.counts(seen.asked_ns):
            return
        outcome, least_ns = self._outcome(self._slices.at(seen.asked_ns)), _LEAST_NS
        took_ns = min(max(least_ns, now_ns - seen.asked_ns), self._most_ns)
        key = round(_STEPS * log2(took_ns / least_ns))
        outcome.first_tokens[key] = outcome.first_tokens.get(key, 0) + 1
        outcome.prompt_tokens += event.prompt_tokens
        outcome.again_tokens += max(0, min(seen.context_tokens, event.prompt_tokens) - event.cached_tokens)

    def _turn_ended(self, event: ev.TurnEnded, now_ns: int) -> None:
        if (seen := self._programs.get(event.program_id)) is not None:
            seen.asked_ns, seen.done_ns, seen.is_cut = 0, now_ns, not event.ok
            seen.context_tokens = event.prompt_tokens + event.output_tokens
            seen.output_tokens += event.output_tokens

    def _ended(self, event: ev.ProgramEnded, now_ns: int) -> None:
        if not event.for_now and (seen := self._programs.pop(event.program_id, None)) is not None:
            self._count(seen, now_ns if seen.asked_ns else seen.done_ns)

    def _count(self, seen: Seen, ended_ns: int) -> None:
        """``ended_ns``: when its last turn did; 0: it did not."""
        if seen.slice == _NOT_COUNTED:
            return
        is_done = ended_ns and not seen.is_cut
        took_ns = min(ended_ns - seen.came_ns, self._most_ns) if is_done else self._most_ns
        outcome = self._outcome(seen.slice)
        outcome.programs += 1
        outcome.censored += took_ns == self._most_ns
        outcome.completion_s += took_ns / NANOSECONDS_PER_SECOND
        outcome.asked_s += seen.own_ns / NANOSECONDS_PER_SECOND + _TOKEN_S * seen.output_tokens

    @property
    def _most_ns(self) -> int:
        return seconds(self._slices.rules.washout_s)

    def _outcome(self, number: int) -> Outcome:
        return self._outcomes.setdefault(number, Outcome())
