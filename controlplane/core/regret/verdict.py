"""A verdict: one decision, closed by what happened, with both of its sides in tokens and in seconds.

Seconds are the engine's: a prefill of so many tokens takes so long, and a pool of P tokens serves P token-seconds
a second, so that a context of T tokens which is kept for t seconds in a full pool costs T t / P of them. Where the
pool is not full that counts in proportion: room that nobody wanted cost nobody anything.
"""

from dataclasses import dataclass
from enum import StrEnum

from controlplane.core.model.causes import Cause

NO_DECISION = "nobody"
"""The kind of a verdict on what nobody decided: a context went, and was asked for again."""

CLIENT = "client"
"""The kind of a verdict on what no decision could have spared: a client changed what had been computed."""

KINDS = ("retain", "release", "demote", "discard", "place", "pause", "hold", "admit", NO_DECISION, CLIENT)
"""What verdicts are about."""


class Outcome(StrEnum):
    """What became of what was decided."""

    HIT = "hit"  # the next turn found its context
    MISS = "miss"  # it did not
    ENDED = "ended"  # there was no next turn
    REPLACED = "replaced"  # another decision came before anything happened
    REJECTED = "rejected"  # the engine would not
    REWRITTEN = "rewritten"  # the client changed so much that nothing of the context could be found
    RAN = "ran"  # of an admission or a hold: the turn was run
    ABANDONED = "abandoned"  # of a hold: the client went
    UNKNOWN = "unknown"  # what followed was not seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Of a decision about one program. What is not known is 0, and the outcome says so.

    ``again_tokens``: prefilled though they had been computed before; charged to whatever had the last word.
    ``estimated``: of its sides one was not measured, as nobody sees what would have happened.
    """

    number: int = 0  # the command's; 0: no command stands for it
    kind: str
    program_id: str
    opened_ns: int
    closed_ns: int
    outcome: Outcome
    cause: Cause = Cause.NONE
    tenant: str = ""
    program_class: str = ""  # by what was known when the program came: ``model.types.class_of``
    tool: str = ""  # what the program did in the gap that was decided about
    client: str = ""  # its name and version, as a gate read them; empty: no gate told
    where: str = ""  # of a client's cause: the first place in the prompt that differs
    context_tokens: int = 0
    hit_tokens: int = 0  # of its own context, on the device
    again_tokens: int = 0
    again_s: float = 0.0  # of the cost: to compute them, or to load what was found below the device
    computed_tokens: int = 0  # of a miss: in all turns of its client, since its ledger began
    held_token_s: float = 0.0  # KV that was kept for it
    freed_token_s: float = 0.0  # KV that others could have
    wait_s: float = 0.0
    cost_s: float = 0.0
    gain_s: float = 0.0
    paid_s: float = 0.0  # what the gap cost as it was decided: memory, prefill and loading
    best_s: float = 0.0  # what it would have cost whoever knew when the program comes back
    estimated: bool = False

    @property
    def is_rest(self) -> bool:
        """Whether nobody decided and nobody missed anything: it counts in sums, and is not worth a line."""
        return self.kind == NO_DECISION and self.outcome is not Outcome.MISS

    @property
    def net_s(self) -> float:
        """What the decision gained over what it cost, in seconds; negative: it should not have been made."""
        return self.gain_s - self.cost_s
