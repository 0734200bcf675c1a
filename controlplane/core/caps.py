"""The limits that clamp the raw window: W_cpu and the progressive soft cap W_kv.

**Paper**: MARS §4.2 and Algorithm 1 (CalcCpuLimit, CalcKvLimit), which name both and give no formula; ours are in
docs/explanation/how-it-decides.md. ``NO_CAP`` stands for a limit that cannot be computed yet.
"""

from math import floor

from controlplane.core.types import Pressure

NO_CAP = 1 << 30
_LEAST_TOOLS_PER_PROGRAM = 0.05
_SOFT_CAP_WIDTH = 0.15


def cpu_cap(pressure: Pressure, *, slowdown_low: float) -> int:
    """Programs whose tools, at the usual tools per active program, just fill the CPUs.

    It counts a CPU a tool, and many tools only wait (for a network, a disk, a sleep): so it holds only while tools
    take ``slowdown_low`` times longer than usual, which is when CPUs are in fact scarce.
    """
    if pressure.cpus <= 0 or pressure.tools_per_program <= 0 or pressure.tool_slowdown_ratio < slowdown_low:
        return NO_CAP
    return max(1, floor(pressure.cpus / max(_LEAST_TOOLS_PER_PROGRAM, pressure.tools_per_program)))


def kv_cap(pressure: Pressure, *, kv_high: float) -> int:
    """Active programs, plus as many queued ones as the free part of the pool holds once they have grown.

    An agent's context grows severalfold after admission, and a grant is not taken back. So a program counts with
    what programs usually come to hold, if that is more than what it holds or asks for now. The free part is scaled
    by s, which falls from 1 to 0 as use rises to ``kv_high``: admission relaxes as headroom disappears, where a
    hard threshold would toggle.
    """
    if pressure.kv_total_blocks <= 0 or pressure.queued_blocks_mean <= 0:
        return NO_CAP
    total, footprint = pressure.kv_total_blocks, pressure.kv_footprint_blocks
    demand_blocks = max(pressure.kv_demand_blocks, pressure.programs_active * footprint)
    scale = min(1.0, max(0.0, (kv_high - demand_blocks / total) / _SOFT_CAP_WIDTH))
    fitting = floor(scale * max(0, total - demand_blocks) / max(pressure.queued_blocks_mean, footprint))
    return max(1, pressure.programs_active + fitting)
