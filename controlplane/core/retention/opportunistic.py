"""Pin a context through its tool call when a warm return is worth more than the memory.

**Paper**: MARS §4.3 "Opportunistic Co-Scheduler" weighs the benefit of a warm resume against the cost of holding
memory, and gives no formula. Ours (docs/adr/0004) is Continuum's (its §4.1–4.2, eq. 2) with the cost scaled by
how full the cache is: an idle pool makes holding free, a full one makes it cost its whole time.

    ttl = argmax over tau of  P(tau, tool) * (T * eta + reload) - tau * clip(u / kv_high, 0, 1)

over the tool's observed durations and 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

from controlplane.core.commands import Command, Retain
from controlplane.core.errors import require
from controlplane.core.estimate import as_seconds
from controlplane.core.facts import Facts
from controlplane.core.policies import STATELESS, Stateless
from controlplane.core.types import NANOSECONDS_PER_SECOND, Pressure, ProgramView, Status, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Opportunistic:
    """``cold_start`` is Continuum's K; ``ttl_max_s`` bounds every pin."""

    cold_start: int = 100
    ttl_max_s: float = 600.0
    kv_high: float = 0.95

    def __post_init__(self) -> None:
        require("cold_start", self.cold_start, low=0, high=255)  # fewer than the durations that are kept
        require("ttl_max_s", self.ttl_max_s, low=0, high=86_400, ends="(]")
        require("kv_high", self.kv_high, low=0, high=2, ends="(]")

    def initial(self) -> Stateless:
        return STATELESS

    def plan(
        self,
        state: Stateless,
        programs: Mapping[str, ProgramView],
        changed: Sequence[ProgramView],
        facts: Facts,
        pressure: Pressure,
        now_ns: int,
    ) -> tuple[Stateless, Sequence[Command]]:
        commands = []
        for program in changed:
            if program.status is not Status.ACTIVE or program.open_turns or program.quarantined:
                continue
            if program.retained_until_ns > now_ns:
                continue  # decided at the start of this gap
            ttl_ns, why = self.ttl(program, facts, pressure)
            if ttl_ns > 0:
                commands.append(Retain(program_id=program.program_id, ttl_ns=ttl_ns, reason=why))
        return state, commands

    def ttl(self, program: ProgramView, facts: Facts, pressure: Pressure) -> tuple[int, str]:
        """How long to pin ``program`` (ns, 0 for not at all), and why."""
        reload_ns = facts.prefill_ns(program.context_tokens)
        seen = facts.tool_durations_ns("")
        cost = min(1.0, max(0.0, pressure.kv_use_ratio / self.kv_high))
        longest_ns = seconds(self.ttl_max_s)
        if len(seen) <= self.cold_start:
            ttl_ns = min(longest_ns, _default_ttl_ns(facts.eviction_delay_ns + reload_ns, cost))
            return ttl_ns, f"cold start: {len(seen)} tool calls seen"
        benefit_ns = facts.eviction_delay_ns * facts.memoryfulness + reload_ns
        own = facts.tool_durations_ns(program.tool)
        if len(own) > self.cold_start:
            seen = own
        ttl_ns = min(longest_ns, best_ttl_ns(seen, benefit_ns, cost))
        return ttl_ns, (
            f"{program.tool or 'tool'}: warm return worth {as_seconds(round(benefit_ns)):.2f}s, "
            f"memory costs {cost:.2f} of its time"
        )


def best_ttl_ns(durations_ns: Sequence[int], benefit_ns: float, cost: float) -> int:
    """argmax of P(tau) * benefit - tau * cost over 0 and ``durations_ns`` (ascending); ties take the shorter."""
    best_ns, best_net = 0, 0.0
    count = len(durations_ns)
    for rank, duration_ns in enumerate(durations_ns, start=1):
        net = rank / count * benefit_ns - duration_ns * cost
        if net > best_net:
            best_ns, best_net = duration_ns, net
    return best_ns


def _default_ttl_ns(benefit_ns: int, cost: float) -> int:
    """Continuum §4.2's T_default: durations taken as Exp(1 s) and eta as 1.

    (1 - exp(-tau)) * B - tau * cost is greatest at tau = ln(B / cost), all in seconds.
    """
    benefit_s = benefit_ns / NANOSECONDS_PER_SECOND
    if benefit_s <= cost:
        return 0
    if cost <= 0:
        return seconds(86_400)
    return seconds(log(benefit_s / cost))
