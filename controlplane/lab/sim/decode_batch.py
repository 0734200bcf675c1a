"""The turns that decode together, so arranged that many steps cost as little to compute as one.

Positions are counted in decode steps. A turn needs a new block at every step whose number has its residue modulo
the block size, so the growth of any number of steps is a sum over residues; the next turn to finish is the top
of a heap; and the context that a step attends to grows by one token a turn.

Where the results of a step are known late, a turn stays for one step after its last token: that step is computed in
vain, unless it is a prefill step.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, TypeVar

from controlplane.lab.sim.hardware import Profile

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Decoding:
    """A turn's place in the batch: its state when it joined, before step ``joined_step``."""

    joined_step: int
    kv_tokens: int
    produced_tokens: int
    finish_step: int
    left: bool = False


class DecodeBatch(Generic[T]):
    """Turns, each of some owner, by the step at which they finish."""

    def __init__(self, profile: Profile, block_tokens: int) -> None:
        self._profile = profile
        self._block_tokens = block_tokens
        self.late_steps = int(profile.results_late)
        self._growing = [0] * block_tokens  # turns that need a block at steps of each residue
        self._heap: list[tuple[int, int, Decoding, T]] = []
        self._serial = 0
        self._finish_sum = 0
        self.step = 0  # steps completed since the beginning
        self.size = 0
        self.context_tokens = 0  # with KV, over all turns

    def join(self, kv_tokens: int, produced_tokens: int, output_tokens: int, owner: T) -> Decoding:
        """Add a turn that has ``kv_tokens`` of context and is to produce ``output_tokens`` in all."""
        entry = Decoding(self.step, kv_tokens, produced_tokens, self.step + output_tokens - produced_tokens)
        self._serial += 1
        heappush(self._heap, (entry.finish_step, self._serial, entry, owner))
        self._growing[(self.step - kv_tokens) % self._block_tokens] += 1
        self._finish_sum += entry.finish_step
        self.context_tokens += kv_tokens
        self.size += 1
        return entry

    def leave(self, entry: Decoding) -> None:
        """Take a turn out between steps."""
        entry.left = True
        self._growing[(entry.joined_step - entry.kv_tokens) % self._block_tokens] -= 1
        self._finish_sum -= entry.finish_step
        self.context_tokens -= self.kv_tokens(entry)
        self.size -= 1

    def kv_tokens(self, entry: Decoding) -> int:
        """Tokens of the turn that have KV now."""
        return entry.kv_tokens + self.step - entry.joined_step

    def produced_tokens(self, entry: Decoding) -> int:
        """Tokens that the turn has produced by now; a step in vain gives none."""
        return entry.produced_tokens + min(self.step, entry.finish_step) - entry.joined_step

    @property
    def remaining_tokens(self) -> int:
        """Output still to come, over all turns, for all that is known."""
        return self._finish_sum - self.size * (self.step - self.late_steps)

    def steps_to_finish(self) -> int:
        """Steps until the next turn is known to have finished. The batch is not empty."""
        heap = self._heap
        while heap[0][2].left:
            heappop(heap)
        return heap[0][0] + self.late_steps - self.step

    def advance(self, steps: int) -> list[T]:
        """Complete ``steps`` steps and take out the turns that are known then to have finished.

        Returns their owners.
        """
        self.step += steps
        self.context_tokens += steps * self.size
        return self._take(self.step - self.late_steps)

    def settle(self) -> list[T]:
        """Another step than of these turns is done: take out those whose last token came before it."""
        return self._take(self.step)

    def _take(self, step: int) -> list[T]:
        finished = []
        heap = self._heap
        while heap and (heap[0][2].left or heap[0][0] <= step):
            _, _, entry, owner = heappop(heap)
            if not entry.left:
                self.leave(entry)
                finished.append(owner)
        return finished

    def growth_blocks(self, first: int, end: int) -> int:
        """Blocks that steps ``first`` up to and without ``end``, counted from the next one, need."""
        cycles, rest = divmod(end - first, self._block_tokens)
        growing, at = self._growing, self.step + first
        return cycles * self.size + sum(growing[(at + i) % self._block_tokens] for i in range(rest))

    def steps_with(self, blocks: int) -> int:
        """How many steps can run with ``blocks`` more blocks."""
        cycles, left = divmod(blocks, self.size)
        steps = cycles * self._block_tokens
        growing, at = self._growing, self.step
        while (left := left - growing[(at + steps) % self._block_tokens]) >= 0:
            steps += 1
        return steps

    def duration_ps(self, steps: int) -> int:
        """Time that the next ``steps`` steps take."""
        return self._profile.decode_ps(self.size, self.context_tokens, steps)

    def steps_within(self, ps: int) -> int:
        """How many steps are complete after ``ps``."""
        first = self._profile.decode_ps(self.size, self.context_tokens)
        slope = self._profile.decode_context_ps * self.size
        # Root of slope/2 k^2 + (first - slope/2) k = ps, in the form that loses no digits; then made exact.
        linear = first - slope / 2
        root = linear + (linear * linear + 2.0 * slope * ps) ** 0.5
        steps = max(0, int(2.0 * ps / root))
        while self.duration_ps(steps + 1) <= ps:
            steps += 1
        while steps and self.duration_ps(steps) > ps:
            steps -= 1
        return steps
