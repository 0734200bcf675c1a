"""Which slice of time it is, and under which policies: a function of the time alone.

So there is nothing to lose: whoever starts again in the middle of a slice goes on under the same policies.
"""

from dataclasses import dataclass
from hashlib import blake2b

from controlplane.core.experiment.rules import SwitchbackRules
from controlplane.core.model.types import seconds


@dataclass(frozen=True, slots=True)
class Slices:
    """Blocks of ``stock_every`` slices, in each of which one slice, drawn by ``key``, is under the stock policies.

    One in each block: that blocks differ, by the time of day say, is in no difference.
    """

    rules: SwitchbackRules
    key: str

    @property
    def length_ns(self) -> int:
        return seconds(self.rules.slice_s)

    def at(self, now_ns: int) -> int:
        """The slice's number."""
        return now_ns // self.length_ns

    def block(self, number: int) -> int:
        return number // self.rules.stock_every

    def is_stock(self, number: int) -> bool:
        every = self.rules.stock_every
        drawn = blake2b(f"{self.key}\n{number // every}".encode(), digest_size=8).digest()
        return number % every == int.from_bytes(drawn) % every

    def counts(self, now_ns: int) -> bool:
        """Whether who comes now is far enough from both switches."""
        washout_ns, within_ns = seconds(self.rules.washout_s), now_ns % self.length_ns
        return washout_ns <= within_ns < self.length_ns - washout_ns
