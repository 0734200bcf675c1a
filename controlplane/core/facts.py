"""What was learned of the workload: the numbers that policies estimate with.

The ledger keeps the estimators (``core.estimate``) and hands policies this read-only face of them.
"""

from collections.abc import Sequence
from typing import Protocol

from controlplane.core.types import ProgramView


class Average(Protocol):
    """A moving average."""

    @property
    def value(self) -> float: ...


class Facts(Protocol):
    """Learned figures; each method is O(log n) or better in what it remembers."""

    def gaps_ns(self, tool: str) -> Sequence[int]:
        """The gaps seen behind a turn that called ``tool``, ascending; all gaps for the empty name."""

    def return_rate(self, program: ProgramView, now_ns: int) -> float:
        """At which rate (1/ns) it is likely to come back soon: ``gaps.Gaps.rate``."""

    def prefill_ns(self, tokens: int) -> int:
        """The time to prefill ``tokens`` of a lost context again; 0 while nothing is known."""

    @property
    def eviction_delay_ns(self) -> int:
        """T: sliding average of the queueing delay of turns that came back to an evicted context."""

    @property
    def hit_ratio(self) -> float:
        """Moving average of the share of a turn's prompt that was cached; 1 while nothing is known."""

    @property
    def memoryfulness(self) -> float:
        """eta = -Corr(k, N - k) over the programs that ended; 1 while fewer than two did."""

    @property
    def turns_running(self) -> float:
        """Moving average of the turns that the engine has."""

    @property
    def turn_service_ns(self) -> int:
        """Moving average of the time that an engine's scheduler runs a turn; 0 while nothing is known."""

    @property
    def again_ns(self) -> int:
        """Moving average of the time to compute a turn's context again, alone; 0 while nothing is known."""

    @property
    def alone_ratio(self) -> float:
        """What turns would take alone, of their time in the engine: ``sharing``; 1 while nothing is known."""

    @property
    def kept_ratio(self) -> float:
        """The share of what left the device that was found in memory below it; 0 while nothing is known."""

    @property
    def load_ratio(self) -> float:
        """What loading a context from there takes of computing it again, at most 1; 1 while nothing is known."""

    @property
    def output_tokens(self) -> float:
        """Moving average of a turn's output."""

    @property
    def block_tokens(self) -> int:
        """Tokens a KV block holds."""

    @property
    def shared_tokens(self) -> Average:
        """Of the prefix that programs share."""

    def blocks(self, tokens: float) -> int:
        """Tokens in whole KV blocks."""


def return_price(facts: Facts, kept_ratio: float) -> float:
    """What having a context back costs, of computing it again, where that share of what left is kept below."""
    return 1.0 - kept_ratio * (1.0 - facts.load_ratio)


def own_blocks(blocks: int, facts: Facts, *, alone: bool) -> int:
    """What a program that holds ``blocks`` frees: a shared prefix stays for the others, unless it is alone."""
    return blocks if alone else max(0, blocks - facts.blocks(facts.shared_tokens.value))
