"""The least that had to be computed again, by whoever knew what would be asked for when.

The turns of a recorded run are taken as they were: at the same times, on the same engines. What is chosen anew is
which contexts stay in each engine's pool meanwhile. Blocks are of one size and cost about the same to compute, so
the best choice is known: whenever room is needed, what is asked for last goes first (Belady, 1966), by parts. Of a
turn the prompt takes room when it begins and the reply when it ends, which is less than it really takes: nobody can
do with less than is told here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from controlplane.core.model import events as ev
from controlplane.core.model.places import place_of


@dataclass(slots=True, kw_only=True, eq=False)
class _Turn:
    number: int  # of the run's turns
    program_id: str
    place: str
    begins_ns: int
    prompt_tokens: int
    cached_tokens: int
    ends_ns: int = 0  # 0: it was not seen to end
    context_tokens: int = 0
    follows: "_Turn | None" = None
    asked_again: float = inf  # when its context is asked for again, on the same engine

    @property
    def reusable_tokens(self) -> int:
        """Of the context before it, as in ``Account.reusable_tokens``."""
        former = self.follows
        if former is None or self.prompt_tokens < former.prompt_tokens:
            return 0
        whole = self.prompt_tokens >= former.context_tokens
        return former.context_tokens if whole else former.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """Tokens: that were computed at all, of those again, and that had to be again."""

    computed_tokens: int
    again_tokens: int
    least_tokens: int

    @property
    def regret_ratio(self) -> float:
        """All that was computed over the least that had to be; 1 is the least."""
        best_tokens = self.computed_tokens - self.again_tokens + self.least_tokens
        return self.computed_tokens / best_tokens if best_tokens else 1.0


@dataclass(slots=True, eq=False)
class Hindsight:
    """Hears a run's events, and tells afterwards."""

    turns: list[_Turn] = field(default_factory=list)
    pools: dict[str, int] = field(default_factory=dict)  # by place of the engine, in tokens
    _open: dict[str, _Turn] = field(default_factory=dict)
    _last: dict[str, _Turn] = field(default_factory=dict)  # of each program, that ended
    _prefix: dict[str, int] = field(default_factory=dict)  # found with a program's first turn

    def event(self, event: ev.Event, now_ns: int) -> None:
        if isinstance(event, ev.PoolSampled) and event.disaggregation != ev.DECODE:
            self.pools[place_of(event.publisher)] = event.total_blocks * max(1, event.block_tokens)
        elif isinstance(event, ev.FirstToken) and event.turn_id not in self._open and event.prompt_tokens:
            self._begin(event, now_ns)
        elif isinstance(event, ev.TurnEnded):
            turn = self._open.pop(event.turn_id, None)
            if turn is not None and event.ok:
                turn.ends_ns, turn.context_tokens = now_ns, event.prompt_tokens + event.output_tokens
                self._last[event.program_id] = turn

    def _begin(self, event: ev.FirstToken, now_ns: int) -> None:
        name = event.program_id
        turn = _Turn(
            number=len(self.turns),
            program_id=name,
            place=place_of(event.publisher),
            begins_ns=now_ns - event.prefill_ns,
            prompt_tokens=event.prompt_tokens,
            cached_tokens=event.cached_tokens,
            follows=self._last.get(name),
        )
        if turn.follows is None:
            self._prefix.setdefault(name, event.cached_tokens)
        elif turn.follows.place == turn.place and turn.reusable_tokens:
            turn.follows.asked_again = min(turn.follows.asked_again, turn.begins_ns)
        self._open[event.turn_id] = turn
        self.turns.append(turn)

    def least(self) -> Least:
        places = {turn.place for turn in self.turns}
        again_tokens = sum(max(0, turn.reusable_tokens - turn.cached_tokens) for turn in self.turns)
        least_tokens = sum(self._least_of(place) for place in places)
        return Least(
            computed_tokens=sum(max(0, turn.prompt_tokens - turn.cached_tokens) for turn in self.turns),
            again_tokens=again_tokens,
            least_tokens=min(again_tokens, least_tokens),
        )

    def _least_of(self, place: str) -> int:
        pool_tokens, prefix = self.pools.get(place, 0), self._prefix
        retained: dict[
            int, int
        ] = {}  # by the turn's number: the tokens that are left of its context, beside what others share
        furthest: list[tuple[float, int, _Turn]] = []
        running_tokens, held_tokens, least_tokens = 0, 0, 0
        for begins, turn in self._in_order(place):
            shared = prefix.get(turn.program_id, 0)
            own_prompt = max(0, turn.prompt_tokens - shared)
            if begins:
                found = retained.pop(turn.follows.number, 0) if turn.follows is not None else 0
                held_tokens -= found
                least_tokens += max(0, turn.reusable_tokens - shared - found)
                running_tokens += own_prompt
            else:
                running_tokens -= own_prompt
                own_tokens = max(0, turn.context_tokens - shared)
                if turn.context_tokens:
                    retained[turn.number] = own_tokens
                    held_tokens += own_tokens
                    heappush(furthest, (-turn.asked_again, turn.number, turn))
            while held_tokens + running_tokens > pool_tokens and furthest:
                victim = furthest[0][2]
                there = retained.get(victim.number, 0)
                gone = min(there, held_tokens + running_tokens - pool_tokens)
                if gone == there:
                    heappop(furthest)
                    retained.pop(victim.number, None)
                else:
                    retained[victim.number] = there - gone
                held_tokens -= gone
        return least_tokens

    def _in_order(self, place: str) -> Iterator[tuple[bool, _Turn]]:
        """Beginnings and ends on one engine; at one instant ends come first."""
        edges: list[tuple[int, bool, int, _Turn]] = []
        for turn in self.turns:
            if turn.place == place:
                edges.append((turn.begins_ns, True, turn.number, turn))
                edges.append((turn.ends_ns or turn.begins_ns, False, turn.number, turn))
        edges.sort(key=lambda each: (each[0], each[1], each[2]))
        for _, begins, _, turn in edges:
            yield begins, turn
