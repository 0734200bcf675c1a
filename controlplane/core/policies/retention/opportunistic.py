"""Pin a context through its tool call when a warm return is worth more than the memory.

**Paper**: MARS §4.3 "Opportunistic Co-Scheduler" weighs the benefit of a warm resume against the cost of holding
memory, and gives no formula. Ours (docs/adr/0004) is Continuum's (its §4.1–4.2, eq. 2) with the cost scaled by
how full the cache is: an idle pool makes holding free, a full one makes it cost its whole time.

    ttl = argmax over tau of  P(tau, tool) * (T * eta + reload) - tau * clip(u / kv_high, 0, 1)

over the tool's observed durations and 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.commands import Command, Pause
from controlplane.core.model.errors import require
from controlplane.core.model.types import Pressure, Program, seconds
from controlplane.core.policies.protocols import NoState, RetentionPolicy, Stateless
from controlplane.core.policies.retention.overflow import pauses
from controlplane.core.policies.retention.ttl import choose_ttl, pins, require_ttl_rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Opportunistic(NoState, RetentionPolicy[Stateless]):
    """``cold_start`` is Continuum's K; ``ttl_max_s`` bounds every pin."""

    cold_start: int = 100
    ttl_max_s: float = 600.0
    kv_high: float = 0.95
    lend: bool = True

    def __post_init__(self) -> None:
        require_ttl_rules(self.cold_start, self.ttl_max_s)
        require("kv_high", self.kv_high, low=0, high=2, ends="(]")

    @property
    def lends(self) -> bool:
        return self.lend

    def plan(
        self,
        state: Stateless,
        programs: Mapping[str, Program],
        changed: Sequence[Program],
        facts: Estimates,
        pressure: Pressure,
        now_ns: int,
    ) -> tuple[Stateless, Sequence[Command]]:
        cost = min(1.0, max(0.0, pressure.kv_use_ratio / self.kv_high))

        def choose(program: Program) -> tuple[int, str]:
            reload_ns = facts.prefill_ns(program.context_tokens)
            return choose_ttl(program, facts, reload_ns=reload_ns, cost=cost, cold_start=self.cold_start)

        leaving = pauses(programs.values(), pressure, now_ns) if self.lend else ()
        gone = {each.program_id for each in leaving if isinstance(each, Pause)}
        staying = [program for program in changed if program.program_id not in gone]
        return state, [*leaving, *pins(staying, now_ns, seconds(self.ttl_max_s), choose)]
