"""Learned figures written down by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFacts:
    """``Facts`` with fixed answers."""

    durations_ns: Mapping[str, Sequence[int]] = field(default_factory=dict)
    prefill_ns_per_token: int = 0
    eviction_delay_ns: int = 0
    turn_service_ns: int = 0
    memoryfulness: float = 1.0
    output_tokens: float = 0.0
    block_tokens: int = 1

    def tool_durations_ns(self, tool: str) -> Sequence[int]:
        return self.durations_ns.get(tool, ())

    def prefill_ns(self, tokens: int) -> int:
        return tokens * self.prefill_ns_per_token
