"""Load contexts back from memory below the device before their programs are likely to come back.

A gap's rate is the greatest chance that it ends within a time, over what is waited for that (``gaps.Gaps.rate``).
One that is known to last 10 s and has lasted 8 has a rate of 1/(2 s): a return is near if ``rate x ahead >= 1``.
The rate is high at a gap's beginning, too, but then the context has not left yet.

A context is fetched into room that the active programs leave: whoever is evicted for it is idle. It is tried once a
gap, since it may be in vain: nobody holds it there against others.

**Paper**: none of the five. MORI promotes a context when its program's turn waits, InferCept swaps it in when its
tool has ended (docs/adr/0016).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.commands import Prefetch
from controlplane.core.model.errors import require
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, Pressure, Program, Status, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """In which control interval it was looked last, by its end, and whose context was fetched in which gap."""

    interval_ends_ns: int = -1
    gaps: tuple[tuple[str, int], ...] = ()


NOTHING_FETCHED = Fetching()


def require_prefetch(prefetch_s: float) -> None:
    """Raises ``ConfigError`` for an impossible time."""
    require("prefetch_s", prefetch_s, low=0, high=3600)


def fetched(
    state: Fetching,
    programs: Mapping[str, Program],
    facts: Estimates,
    pressure: Pressure,
    now_ns: int,
    ahead_ns: int,
) -> tuple[Fetching, list[Prefetch]]:
    """Whose context is fetched now, the soonest to come back first: once a control interval, ``ahead_ns`` before.

    Nothing where that is 0, or where there is no memory below.
    """
    if not (ahead_ns and pressure.host_total_blocks) or pressure.interval_ends_ns == state.interval_ends_ns:
        return state, []
    tried = {name: began for name, began in state.gaps if name in programs and programs[name].gap_since_ns == began}
    room = {pool.name: pool.room_blocks for pool in pressure.replicas}
    whole = pressure.kv_total_blocks - pressure.kv_demand_blocks
    near = []
    for name, program in programs.items():
        if (
            _lies_below(program)
            and name not in tried
            and (rate := facts.return_rate(program, now_ns)) * ahead_ns >= 1
        ):
            near.append((-rate, name, program))
    commands = []
    for rate, name, program in sorted(near, key=lambda found: found[:2]):
        needed = program.kv_blocks if program.lends else 0  # who does not lend is part of the demand
        free = room.get(program.replica, whole)
        if free < needed:
            continue
        if program.replica in room:
            room[program.replica] -= needed
        else:
            whole -= needed
        tried[name] = program.gap_since_ns
        expected_s = -1.0 / rate / NANOSECONDS_PER_SECOND
        commands.append(Prefetch(program_id=name, reason=f"it is expected back in {expected_s:.1f}s"))
    return Fetching(interval_ends_ns=pressure.interval_ends_ns, gaps=tuple(tried.items())), commands


def _lies_below(program: Program) -> bool:
    if program.kv_tier is not Tier.HOST or not program.gap_since_ns:
        return False
    return program.status is Status.ACTIVE and not (
        program.open_turns or program.queued_turns or program.quarantined
    )
