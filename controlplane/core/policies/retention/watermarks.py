"""Pause programs when the active ones need more than the pool holds: acting ones first, then the shortest.

**Paper**: ThunderAgent §4.3.1. Every ``interval_s`` the demand of the active programs is compared with the pool, an
acting program's weight falling by half with each such tick (eq. 7, §5.1). Above the pool's size, programs are
paused in the order of S_pause (eq. 11) until the demand is at or below ``watermark_high`` of it. Nothing is pinned:
what is paused is the engine's to evict. Of several engines each is compared with its own pool (Figure 3).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.estimators.idleness import Decay
from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.commands import Command, Pause
from controlplane.core.model.errors import require
from controlplane.core.model.types import Pressure, Program, Replica, Status, seconds
from controlplane.core.policies.facts import own_blocks
from controlplane.core.policies.protocols import Checked, RetentionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks(RetentionPolicy[Checked]):
    """``interval_s`` is the paper's delta t, ``watermark_high`` its lambda_max, ``decay_base`` its x; 1: no decay.

    The paper prints f(t) = 2^-t beside two units of t (Appendix E.1): ticks of ``interval_s``, or, with
    ``decay_by_second``, seconds.
    """

    interval_s: float = 5.0
    decay_base: float = 2.0
    decay_by_second: bool = False
    watermark_high: float = 1.0

    def __post_init__(self) -> None:
        require("interval_s", self.interval_s, low=0, high=3600, ends="(]")
        require("decay_base", self.decay_base, low=1, high=1000)
        require("watermark_high", self.watermark_high, low=0, high=1, ends="(]")

    @property
    def decay(self) -> Decay:
        tick_ns = seconds(1.0 if self.decay_by_second else self.interval_s)
        return Decay(base=self.decay_base, tick_ns=tick_ns, continuous=self.decay_by_second)

    def initial(self) -> Checked:
        return Checked()

    def plan(
        self,
        state: Checked,
        programs: Mapping[str, Program],
        changed: Sequence[Program],
        facts: Estimates,
        pressure: Pressure,
        now_ns: int,
    ) -> tuple[Checked, Sequence[Command]]:
        if state.at_ns >= 0 and now_ns - state.at_ns < seconds(self.interval_s):
            return state, ()
        whole = Replica(name="", total_blocks=pressure.kv_total_blocks, demand_blocks=pressure.kv_demand_blocks)
        commands: list[Command] = []
        for pool in pressure.replicas or (whole,):
            if 0 < pool.total_blocks < pool.demand_blocks:  # eq. 7
                commands += self._pauses(pool, programs, facts, now_ns)
        return Checked(now_ns), commands

    def _pauses(
        self, pool: Replica, programs: Mapping[str, Program], facts: Estimates, now_ns: int
    ) -> Iterator[Command]:
        """Until what is left on the engine fits. An engine without a name has all programs."""
        surplus, decay = pool.demand_blocks - self.watermark_high * pool.total_blocks, self.decay
        active = [
            p
            for p in programs.values()
            if p.status is Status.ACTIVE and not p.parent_id and pool.name in ("", p.replica) and not p.delegating
        ]
        active.sort(key=lambda p: (p.open_turns > 0, p.kv_blocks, p.program_id))  # eq. 11, the largest score first
        for number, program in enumerate(active, 1):
            if surplus <= 0:
                break
            phase = "reasoning" if program.open_turns else "acting"
            use = f"demand {pool.demand_blocks / pool.total_blocks:.2f} of the pool"
            yield Pause(program_id=program.program_id, reason=f"{use}: {phase}, {program.kv_blocks} blocks")
            freed_blocks = own_blocks(program.kv_blocks, facts, is_last=number == len(active))
            surplus -= freed_blocks * decay.weight(program, now_ns)
