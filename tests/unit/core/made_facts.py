"""Learned figures written down by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.core.estimators.workload import MovingAverage
from controlplane.core.model.types import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFacts:
    """``Estimates`` with fixed answers."""

    seen_gaps_ns: Mapping[str, Sequence[int]] = field(default_factory=dict)
    returns: float = 1.0  # the chance of it
    rates: Mapping[str, float] = field(default_factory=dict)  # by program, per ns; others come back at once
    prefill_ns_per_token: int = 0
    eviction_delay_ns: int = 0
    turn_service_ns: int = 0
    turns_running: float = 0.0
    recompute_ns: int = 0
    marginal_throughput: float = 1.0
    host_hit_ratio: float = 0.0
    reload_cost_ratio: float = 1.0
    hit_ratio: float = 1.0
    memoryfulness: float = 1.0
    block_tokens: int = 1
    shared_tokens: MovingAverage = field(default_factory=MovingAverage)

    def gaps_ns(self, tool: str) -> Sequence[int]:
        return self.seen_gaps_ns.get(tool, ())

    def chance_of_return(self, program: Program, now_ns: int) -> float:
        return self.returns

    def return_rate(self, program: Program, now_ns: int) -> float:
        return self.rates.get(program.program_id, 1.0)

    def prefill_ns(self, tokens: int) -> int:
        return tokens * self.prefill_ns_per_token

    def blocks(self, tokens: float) -> int:
        return -int(-tokens // self.block_tokens)

    @property
    def shared_blocks(self) -> int:
        return int(self.shared_tokens.value // self.block_tokens)
