"""How much KV the programs in the engine will need before they end, and how many more fit on top of that.

Contexts grow after admission and a grant is not taken back: what matters is not the demand now but its peak. An
agent's context grows about evenly, turn by turn, from its first prompt to its last; a program that is half-way will
be gone when one that starts now is half-way. Summing what everybody is expected to hold over the time to come shows
that programs of different age share a pool that as many programs of one age would overfill (docs/adr/0013).

Time is counted in lifetimes on a grid: the turns of an average program.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, floor
from typing import NamedTuple

POINTS = 16
_PRIOR_PROGRAMS = 3  # that are supposed to have ended before any did
_PRIOR_TURNS = 10  # of each
_PRIOR_RATIO = 4.0  # of their last context over their first prompt, until turns have ended
_MORE_RATIO = 1.25  # by how much more a program is supposed to grow at least
_CAPACITY = 256


@dataclass(slots=True, kw_only=True)
class Growth:
    """By how much programs outgrew their first prompt: the latest 256 that ended."""

    recent: list[float] = field(default_factory=list)  # a ring once it is full
    oldest: int = 0
    ascending: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)  # sums[i]: of ascending[i:]
    ended: int = 0
    ended_turns: int = 0
    turns: int = 0  # that growth was seen in
    turn_ratios: float = 0.0  # sum over them of growth / first prompt

    def add(self, ratio: float, turns: int) -> None:
        """A program ended after ``turns``, its longest context ``ratio`` times its first prompt."""
        self.ended += 1
        self.ended_turns += turns
        if len(self.recent) < _CAPACITY:
            self.recent.append(ratio)
        else:
            self.ascending.remove(self.recent[self.oldest])
            self.recent[self.oldest] = ratio
            self.oldest = (self.oldest + 1) % _CAPACITY
        insort(self.ascending, ratio)
        self.sums = list(accumulate(reversed(self.ascending)))[::-1]

    def add_turn(self, ratio: float) -> None:
        """A context grew by ``ratio`` of the program's first prompt in one turn."""
        self.turns += 1
        self.turn_ratios += ratio

    @property
    def lifetime_turns(self) -> float:
        """Turns of an average program."""
        return (_PRIOR_PROGRAMS * _PRIOR_TURNS + self.ended_turns) / (_PRIOR_PROGRAMS + self.ended)

    def expected(self, reached: float) -> float:
        """The mean ratio of those that came beyond ``reached``, with a few that are only supposed."""
        supposed = 1.0 + _PRIOR_TURNS * self.turn_ratios / self.turns if self.turns else _PRIOR_RATIO
        if supposed < _MORE_RATIO * reached:
            supposed = _MORE_RATIO * reached
        beyond = bisect_right(self.ascending, reached)
        count = len(self.ascending) - beyond
        return (_PRIOR_PROGRAMS * supposed + (self.sums[beyond] if count else 0.0)) / (_PRIOR_PROGRAMS + count)


class Growing(NamedTuple):
    """A program that holds ``blocks`` and is expected to end with ``last``, ``lifetimes`` from now.

    A tuple, as one is made of each active program when one comes or goes.
    """

    blocks: float
    last: float
    lifetimes: float = 1.0


def demand(programs: Iterable[Growing], shared_blocks: int = 0) -> tuple[int, ...]:
    """Blocks needed at each point of the grid, 1/16 to 1 lifetime from now, if nobody else came. O(programs).

    ``shared_blocks``: a prefix that all share and ``programs`` leave out.
    """
    held = [0.0] * (POINTS + 1)  # by the last point that the program sees
    slope = [0.0] * (POINTS + 1)
    for blocks, last, lifetimes in programs:
        points = lifetimes * POINTS
        if points < 1.0:
            points = 1.0
        last_point = ceil(points) if points < POINTS else POINTS
        if blocks > 0:
            held[last_point] += blocks
        if last > blocks:
            slope[last_point] += (last - blocks) / points
    alive_held = list(accumulate(reversed(held)))[::-1]
    alive_slope = list(accumulate(reversed(slope)))[::-1]
    return tuple(ceil(shared_blocks + alive_held[k] + alive_slope[k] * k) for k in range(1, POINTS + 1))


def fitting(curve: Sequence[int], newcomer: Growing, room_blocks: float, excess_ratio: float = 0.0) -> int:
    """How many programs like ``newcomer``, admitted now, need no more than ``room_blocks`` with the others.

    Of all that is needed over the time to come, the share ``excess_ratio`` may be too much.
    """
    growth = (newcomer.last - newcomer.blocks) / POINTS
    each = [max(1.0, newcomer.blocks + growth * point) for point in range(1, len(curve) + 1)]
    never = max(0, floor(min((room_blocks - blocks) / size for blocks, size in zip(curve, each, strict=True))))
    if not excess_ratio:
        return never

    def fits(count: int) -> bool:
        needed = [blocks + count * size for blocks, size in zip(curve, each, strict=True)]
        return sum(max(0.0, blocks - room_blocks) for blocks in needed) <= excess_ratio * sum(needed)

    most = max(never, floor(room_blocks / min(each)))  # so many would take all of it from the start
    return bisect_left(range(most + 1), True, lo=never, key=lambda count: not fits(count + 1))
