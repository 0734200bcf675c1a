"""What was learned of the workload: the numbers that policies estimate with.

The ledger keeps the estimators (``core.estimate``) and hands policies this read-only face of them.
"""

from collections.abc import Sequence
from typing import Protocol


class Facts(Protocol):
    """Learned figures; each method is O(log n) or better in what it remembers."""

    def tool_durations_ns(self, tool: str) -> Sequence[int]:
        """The durations seen of ``tool``, ascending; of every tool for the empty name."""

    def prefill_ns(self, tokens: int) -> int:
        """The time to prefill ``tokens`` of a lost context again; 0 while nothing is known."""

    @property
    def eviction_delay_ns(self) -> int:
        """T: sliding average of the queueing delay of turns that came back to an evicted context."""

    @property
    def memoryfulness(self) -> float:
        """eta = -Corr(k, N - k) over the programs that ended; 1 while fewer than two did."""

    @property
    def turn_service_ns(self) -> int:
        """Moving average of the time that an engine's scheduler runs a turn; 0 while nothing is known."""

    @property
    def output_tokens(self) -> float:
        """Moving average of a turn's output."""

    @property
    def block_tokens(self) -> int:
        """Tokens a KV block holds."""
