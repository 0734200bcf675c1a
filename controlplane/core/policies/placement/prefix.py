"""Send each turn where most of its prompt was seen last, unless turns have piled up there.

A baseline: the cache-aware policy of SGLang's and vLLM's gateways, which remember prompts and not programs (MORI
§6.1 compares with it). A gateway does not hear of evictions, so an engine counts as having what it once had.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.errors import require
from controlplane.core.model.types import Replica
from controlplane.core.policies.placement.cost import sent_to
from controlplane.core.policies.protocols import NextTurn, NoState, Placed, Stateless


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix(NoState):
    """``match``: the share of a prompt that an engine must have seen. Defaults are the gateways' own.

    Turns have piled up where one engine has more than ``pile_turns`` more than another, and more than
    ``pile_ratio`` times as many: then the engine with the fewest turns takes the next one, whatever it has seen.
    """

    match: float = 0.3
    pile_turns: int = 64
    pile_ratio: float = 1.5

    def __post_init__(self) -> None:
        require("match", self.match, low=0, high=1)
        require("pile_turns", self.pile_turns, low=0, high=1_000_000)
        require("pile_ratio", self.pile_ratio, low=1, high=1e6)

    def place(
        self, state: Stateless, turn: NextTurn, replicas: Sequence[Replica], facts: Estimates, now_ns: int
    ) -> tuple[Stateless, Placed]:
        return state, sent_to(turn, self._chosen(turn, replicas, facts), facts, now_ns)

    def _chosen(self, turn: NextTurn, replicas: Sequence[Replica], facts: Estimates) -> Replica:
        fewest = min(replicas, key=lambda each: each.turns)
        most = max(each.turns for each in replicas)
        if most - fewest.turns > self.pile_turns and most > self.pile_ratio * fewest.turns:
            return fewest
        prompt_tokens = max(1, turn.blocks * facts.block_tokens)
        home = next((each for each in replicas if each.name == turn.program.replica), None)
        if home is not None and turn.reusable_tokens > self.match * prompt_tokens:
            return home
        if facts.shared_tokens.value > self.match * prompt_tokens:  # all that ran have seen it: the first one found
            return next((each for each in replicas if each.demand_blocks or each.turns), replicas[0])
        return min(replicas, key=lambda each: each.demand_blocks)  # the one with the smallest record
