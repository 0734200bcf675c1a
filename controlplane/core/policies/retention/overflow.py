"""Who gives its slot back between two turns, so that others find room.

What was let in too much is undone here, and a slot whose program will be away for long is lent to somebody who
waits. Of those that act, the ones go first whose contexts bring least while they lie there. A context of C blocks
that is kept saves computing it again, which would hold up the B blocks of all that run for F(C). That, by the
block, times the rate at which such a gap is likely to end soon (``gaps.Gaps.rate``) is what keeping brings over
what it costs:

    keep  =  rate x F(C) x B / C

where memory below the device keeps what is evicted, F is what it costs to have a context back on the mean.

Below 1 the memory does more for somebody else. The rate falls the longer a gap lasts, so that a short tool is
waited for, and a long one, or a client that has left, is not.

**Paper**: InferCept compares the same two wastes, T C against F(C) B, with the time that a tool has run so far in
place of what is left of it. MARS §4.2 never takes a slot back (docs/adr/0030).
"""

from collections.abc import Iterable, Sequence
from heapq import nsmallest

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.commands import Command, Pause, Release
from controlplane.core.model.types import Pressure, Program, Status
from controlplane.core.policies.facts import return_price

_JUST_BEGUN = float("inf")
_MOST_AT_ONCE = 64  # slots a tick; the next one goes on


def keep_ratio(program: Program, facts: Estimates, running_blocks: int, now_ns: int) -> float:
    """What keeping the program's context brings over what it costs, now."""
    recompute_ns = facts.prefill_ns(program.context_tokens) * return_price(facts, facts.host_hit_ratio)
    return facts.return_rate(program, now_ns) * recompute_ns * running_blocks / max(1, program.kv_blocks)


def pauses(programs: Iterable[Program], pressure: Pressure, now_ns: int) -> Sequence[Command]:
    """Slots to take back from those that rest, while the active programs hold more than the pool.

    What is lent is no part of the demand: somebody who needs that room has been let in, and gets it here. Without
    this the engine would evict somebody all the same.
    """
    if not pressure.kv_total_blocks:
        return ()
    excess = pressure.kv_demand_blocks - pressure.kv_total_blocks
    if excess + pressure.kv_lent_blocks <= 0:
        return ()  # before anybody is looked at
    resting = [program for program in programs if program.gap_since_ns and may_leave(program)]
    excess += sum(_own_blocks(program) for program in resting if program.lends)
    if excess <= 0:
        return ()
    weighed = [(_weighed(program), program.program_id, program) for program in resting]
    commands: list[Command] = []
    for keep, name, program in nsmallest(_MOST_AT_ONCE, weighed, key=lambda found: found[:2]):
        if excess <= 0:
            break
        worth = "its gap began just now" if keep == _JUST_BEGUN else f"its context brings {keep:.2f} of its cost"
        commands.append(Pause(program_id=name, reason=f"the pool is overfull: {worth}"))
        if program.retained_until_ns > now_ns:
            commands.append(Release(program_id=name, reason="its slot was taken back"))
        excess -= _own_blocks(program)
    return commands


def may_leave(program: Program) -> bool:
    """Whether the program's slot may be taken back now: it is a root between two turns, and nothing of it waits."""
    if program.status is not Status.ACTIVE or program.parent_id or program.open_turns or program.queued_turns:
        return False
    return not program.quarantined and not program.delegating


def _own_blocks(program: Program) -> int:
    return max(1, program.kv_blocks - program.shared_blocks)


def _weighed(program: Program) -> float:
    """As of when it was weighed last; one that was not in this gap is waited for."""
    return program.keep_ratio if program.keep_ratio >= 0 else _JUST_BEGUN
