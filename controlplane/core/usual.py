"""What a program is expected to need until it ends, by what others of its class came to need."""

from controlplane.core.estimate import Estimates
from controlplane.core.forecast import Growing
from controlplane.core.lives import class_of
from controlplane.core.types import Program

_SHRINK_TURNS = 4.0  # turns of its class that a program's own ones are weighed against


class Usual:
    """What programs of a class have in common, looked up once for all that are asked about at one time."""

    def __init__(self, estimates: Estimates) -> None:
        self._lives = lives = estimates.lives
        self._block_tokens = estimates.block_tokens
        self._shared_blocks = estimates.blocks(estimates.shared_tokens.value)
        self._lifetime_ns = max(1.0, lives.turns_left("", 0) * lives.cycle_ns(""))  # when nobody is held
        self._of_kind: dict[str, tuple[float, float]] = {}
        self._left: dict[tuple[str, int], float] = {}

    def ahead(self, program: Program, held_blocks: int) -> tuple[float, float]:
        """By how many blocks the program will grow, and in how many lifetimes it will have ended.

        Its own pace and growth so far are shrunk to its class's. In its first turn it is taken to be of the class
        that ``held_blocks``, which it asked for, tell.
        """
        first_tokens = program.first_tokens or held_blocks * self._block_tokens
        kind = program.kind or class_of(program.tenant, program.agent, first_tokens)
        if kind not in self._of_kind:
            tokens = self._lives.tokens_a_turn(kind, first_tokens)
            self._of_kind[kind] = (tokens, self._lives.cycle_ns(kind) or 1.0)
        turns, (tokens, cycle_ns) = program.turn_index, self._of_kind[kind]
        left = self._left.get((kind, turns))
        if left is None:
            left = self._left[kind, turns] = self._lives.turns_left(kind, turns)
        grown = program.peak_tokens - program.first_tokens + _SHRINK_TURNS * tokens
        paced_ns = sum(program.cycles) + _SHRINK_TURNS * cycle_ns
        growth = grown / (max(0, turns - 1) + _SHRINK_TURNS)
        pace_ns = paced_ns / (len(program.cycles) / 2 + _SHRINK_TURNS)
        return left * growth / self._block_tokens, left * pace_ns / self._lifetime_ns

    def waiting(self, program: Program) -> Growing:
        """What a program that waits will need; what it shares with the others is held already."""
        held = max(1, program.queued_blocks)
        grown, lifetimes = self.ahead(program, held)
        own = held - min(held, self._shared_blocks)
        return Growing(own, own + grown, lifetimes)

    def active(self, program: Program) -> Growing:
        """What a program that has a slot will need, but for what it shares with the others."""
        grown, lifetimes = self.ahead(program, program.kv_blocks)
        own = max(1, program.kv_blocks) - program.shared_blocks
        return Growing(own, own + grown, lifetimes)

    def left(self, program: Program) -> float:
        """What a program that waits is expected to hold until its end: blocks times lifetimes."""
        return self.waiting(program).left

    def expected_tokens(self, program: Program) -> int:
        """What the longest context of a program that waits is forecast to be."""
        shared = min(max(1, program.queued_blocks), self._shared_blocks)
        return round((self.waiting(program).last + shared) * self._block_tokens)
