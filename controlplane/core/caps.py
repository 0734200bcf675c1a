"""The limits that clamp the raw window: W_cpu and the progressive soft cap W_kv.

**Paper**: MARS §4.2 and Algorithm 1 (CalcCpuLimit, CalcKvLimit), which name both and give no formula; ours are in
docs/explanation/how-it-decides.md. ``NO_CAP`` stands for a limit that cannot be computed yet.
"""

from math import floor

from controlplane.core.facts import Facts
from controlplane.core.forecast import fitting
from controlplane.core.types import Pressure

NO_CAP = 1 << 30
_LEAST_TOOLS_PER_PROGRAM = 0.05
_MOST_EXCESS = 0.5


def cpu_cap(pressure: Pressure) -> int:
    """Programs whose tools, at the usual tools per active program, just fill the CPUs.

    It counts a CPU a tool, and many tools only wait (for a network, a disk, a sleep): so it holds only while the
    host counts as overloaded, which is when CPUs are in fact scarce.
    """
    if not pressure.cpu_overloaded or pressure.cpus <= 0 or pressure.tools_per_program <= 0:
        return NO_CAP
    return max(1, floor(pressure.cpus / max(_LEAST_TOOLS_PER_PROGRAM, pressure.tools_per_program)))


def kv_cap(pressure: Pressure, *, kv_high: float, excess_ratio: float = 0.0) -> int:
    """Active programs, plus as many like those that wait as the pool holds until the active ones have ended.

    An agent's context grows severalfold after admission, and a grant is not taken back: what counts is the
    forecast demand, not the demand now. ``excess_ratio`` of it, over the time to come, may exceed the pool.
    """
    if pressure.kv_total_blocks <= 0 or pressure.newcomer is None or not pressure.kv_forecast_blocks:
        return NO_CAP
    room = kv_high * pressure.kv_total_blocks
    more = fitting(pressure.kv_forecast_blocks, pressure.newcomer, room, excess_ratio)
    return max(1, pressure.programs_active + more)


def tolerated_excess(pressure: Pressure, facts: Facts, waste_ratio: float) -> float:
    """The share of the demand that may exceed the pool; 0 while nothing is known of what that costs (ADR 0019).

    What exceeds it is evicted, and that share of the turns computes its context again, which holds the whole engine
    up; a turn's own part of the engine's time is what it takes there, shared with all that run beside it.
    """
    newcomer, service_ns = pressure.newcomer, facts.turn_service_ns
    if newcomer is None or not waste_ratio:
        return 0.0
    tokens = round((newcomer.blocks + newcomer.last) / 2 * facts.block_tokens)
    again_ns = facts.prefill_ns(tokens) * max(1, pressure.programs_active)
    return min(_MOST_EXCESS, waste_ratio * (service_ns / again_ns) ** 2) if again_ns > 0 else 0.0
