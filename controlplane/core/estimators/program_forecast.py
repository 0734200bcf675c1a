"""What a program is expected to need until it ends, by what others of its class came to need."""

from controlplane.core.estimators.demand_curve import Growing
from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, Left, Program, class_of

_PRIOR_LIFETIME_NS = 60e9  # of a program while no turn was seen
_SHRINK_TURNS = 4.0  # turns of its class that a program's own ones are weighed against


class ProgramForecaster:
    """What programs of a class have in common, looked up once for all that are asked about at one time."""

    def __init__(self, estimates: Estimates) -> None:
        self._class_stats = lives = estimates.lives
        self._block_tokens = estimates.block_tokens
        self._service_ns = estimates.service.value
        self._shared_blocks = estimates.shared_blocks
        # What an average program takes when nobody is held.
        self.lifetime_ns = max(1.0, lives.turns_left("", 0) * lives.cycle_ns(""))
        self._of_class: dict[str, tuple[float, float]] = {}
        self._known: dict[tuple[str, int], tuple[float, float, float]] = {}

    def ahead(self, program: Program, held_blocks: int) -> tuple[float, float]:
        """By how many blocks the program will grow, and in how many lifetimes it will have ended.

        Its own pace and growth so far are shrunk to its class's. In its first turn it is taken to be of the class
        that ``held_blocks``, which it asked for, tell.
        """
        turns = program.turn_index
        first_tokens = program.first_tokens or held_blocks * self._block_tokens
        class_key = program.class_key or class_of(program.tenant, program.agent, first_tokens)
        known = self._known.get((class_key, turns)) or self._look_up(class_key, turns, first_tokens)
        left, tokens, cycle_ns = known
        grown = program.peak_tokens - program.first_tokens + _SHRINK_TURNS * tokens
        paced_ns = sum(program.cycles) + _SHRINK_TURNS * cycle_ns
        growth = grown / ((turns - 1 if turns else 0) + _SHRINK_TURNS)
        pace_ns = paced_ns / (len(program.cycles) / 2 + _SHRINK_TURNS)
        return left * growth / self._block_tokens, left * pace_ns / self.lifetime_ns

    def _look_up(self, class_key: str, turns: int, first_tokens: int) -> tuple[float, float, float]:
        """Turns left; by how much a context of that class grows in one; what one takes with the gap behind it."""
        if class_key not in self._of_class:
            tokens = self._class_stats.tokens_a_turn(class_key, first_tokens)
            self._of_class[class_key] = (tokens, self._class_stats.cycle_ns(class_key) or 1.0)
        known = self._known[class_key, turns] = (
            self._class_stats.turns_left(class_key, turns),
            *self._of_class[class_key],
        )
        return known

    def waiting(self, program: Program) -> Growing:
        """What a program that waits will need; what it shares with the others is held already."""
        held = max(1, program.queued_blocks)
        grown, lifetimes = self.ahead(program, held)
        own = held - self._shared(program, held)
        return Growing(own, own + grown, lifetimes)

    def _shared(self, program: Program, held: int) -> int:
        """What others hold already of the blocks that it asks for."""
        return min(held, max(self._shared_blocks, program.group_blocks))

    def active(self, program: Program) -> tuple[float, float, float]:
        """What a program that has a slot will need, as in ``Growing``, but for what it shares with the others."""
        grown, lifetimes = self.ahead(program, program.kv_blocks)
        own = (program.kv_blocks or 1) - program.shared_blocks
        return own, own + grown, lifetimes

    def left(self, program: Program) -> Left:
        found = self.waiting(program)
        return found.left, found.lifetimes

    def token_s(self, program: Program) -> float:
        """What a program that waits is expected to hold until its end, in KV tokens x seconds."""
        return self.waiting(program).left * self._block_tokens * self._seen_lifetime_ns() / NANOSECONDS_PER_SECOND

    def _seen_lifetime_ns(self) -> float:
        """Where no program had a second turn there was no gap to learn from, but the turns' own time is known."""
        if self.lifetime_ns > 1.0:
            return self.lifetime_ns
        in_engine_ns = self._class_stats.turns_left("", 0) * self._service_ns
        return in_engine_ns if in_engine_ns > 0 else _PRIOR_LIFETIME_NS

    def expected_tokens(self, program: Program) -> int:
        """What the longest context of a program that waits is forecast to be."""
        shared = self._shared(program, max(1, program.queued_blocks))
        return round((self.waiting(program).last + shared) * self._block_tokens)
