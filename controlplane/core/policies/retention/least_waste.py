"""Keep, move or drop the context of an acting program, whichever wastes least memory over time.

**Paper**: InferCept. Its waste is memory times the time that it serves nothing, here in blocks times ns:

    preserve   T C                        T: how long the tool takes, C: the program's blocks
    discard    F(C) C / 2 + F(C) B        F: time to prefill C again, in chunks: half of C is held on average;
                                          B: blocks of the other programs, which wait for it
    swap       2 S(C) C                   S: time to copy C to the host, or back, as long as loads were seen to
                                          take of computing the same; copies hold nobody else up

T is not known when the tool begins. As in the paper it is taken as the time that the tool has run so far: every
context is kept at first, and given up once keeping it has wasted as much as the best of the others would.

What was swapped out can be swapped in before its tool is likely to end (``retention.prefetch``); the paper waits
for the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.core.estimators.idleness import acting_since_ns
from controlplane.core.estimators.workload import Estimates, as_seconds
from controlplane.core.model.commands import Command, Demote, Discard, Retain
from controlplane.core.model.errors import require
from controlplane.core.model.types import Pressure, Program, Status, seconds
from controlplane.core.policies.protocols import RetentionPolicy
from controlplane.core.policies.retention.prefetch import NOTHING_FETCHED, Fetching, fetched, require_prefetch
from controlplane.core.policies.retention.ttl import beginning_to_act


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """When the kept contexts were looked at (-1: never), and which were fetched."""

    at_ns: int = -1
    fetching: Fetching = NOTHING_FETCHED


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastWaste(RetentionPolicy[Watched]):
    """``interval_s``: between two looks at what is kept. ``ttl_max_s`` bounds every pin.

    ``prefetch_s``: so long before its likely return a context is fetched; 0: never.
    """

    interval_s: float = 1.0
    ttl_max_s: float = 600.0
    prefetch_s: float = 0.0

    def __post_init__(self) -> None:
        require("interval_s", self.interval_s, low=0, high=3600)
        require("ttl_max_s", self.ttl_max_s, low=0, high=86_400, ends="(]")
        require_prefetch(self.prefetch_s)

    def initial(self) -> Watched:
        return Watched()

    def plan(
        self,
        state: Watched,
        programs: Mapping[str, Program],
        changed: Sequence[Program],
        facts: Estimates,
        pressure: Pressure,
        now_ns: int,
    ) -> tuple[Watched, Sequence[Command]]:
        keep_ns = seconds(self.ttl_max_s)
        commands: list[Command] = [
            Retain(program_id=program.program_id, ttl_ns=keep_ns, reason="preserve: its tool has only begun")
            for program in beginning_to_act(changed, now_ns)
        ]
        fetching, coming = fetched(state.fetching, programs, facts, pressure, now_ns, seconds(self.prefetch_s))
        commands += coming
        if state.at_ns >= 0 and now_ns - state.at_ns < seconds(self.interval_s):
            return replace(state, fetching=fetching), commands
        for name in sorted(programs):
            program = programs[name]
            if program.retained_until_ns > now_ns and program.status is Status.ACTIVE and not program.open_turns:
                commands += self._evictions(program, facts, pressure, now_ns)
        return Watched(at_ns=now_ns, fetching=fetching), commands

    def _evictions(self, program: Program, facts: Estimates, pressure: Pressure, now_ns: int) -> Sequence[Command]:
        began_ns = acting_since_ns(program)
        if not began_ns:
            return ()
        blocks = program.kv_blocks
        preserve = (now_ns - began_ns) * blocks
        prefill_ns = facts.prefill_ns(program.context_tokens)
        others = max(0, pressure.kv_demand_blocks - blocks)
        discard = prefill_ns * blocks / 2 + prefill_ns * others
        swap = float("inf")
        if pressure.host_total_blocks:  # until one came back copying is taken to be free: only so that is learned
            copy_ns = facts.reload_cost_ratio * prefill_ns if facts.host_hit_ratio else 0.0
            swap = 2 * copy_ns * blocks
        if preserve <= min(discard, swap):
            return ()
        why = f"its tool has run for {as_seconds(now_ns - began_ns):.1f}s: keeping it has wasted more than"
        if swap < discard:
            return (Demote(program_id=program.program_id, reason=f"swap: {why} two copies would"),)
        return (Discard(program_id=program.program_id, reason=f"discard: {why} a new prefill would"),)
