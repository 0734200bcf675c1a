"""One run of a grid, in a worker process."""

import functools
import time

from controlplane.core.presets import preset
from controlplane.runs import load_tools, load_workload
from controlplane.sim.contention import parse_contention
from controlplane.sim.lower_tiers import parse_tier
from controlplane.sim.profile import load_profile
from controlplane.sim.simulate import EngineSpec, SimSpec, simulate
from controlplane.sim.solo import IdealTimes
from controlplane.sweep.spec import Cell, HardwareSpec, SweepSpec, WorkloadSpec, of_title
from controlplane.workload.arrivals import parse_arrival
from controlplane.workload.trace import Trace

Figures = dict[str, float]


def run_cell(spec: SweepSpec, cell: Cell) -> Figures:
    """The run's figures by name, ``programs`` and ``cpu_s`` (what it took to simulate) among them.

    Raises ``ControlPlaneError``.
    """
    workload, hardware = of_title(spec.workload, cell.workload), of_title(spec.hardware, cell.hardware)
    began_s = time.process_time()
    result = simulate(
        SimSpec(
            trace=_trace(workload),
            arrival=parse_arrival(cell.arrival),
            engine=_engine(hardware),
            preset=preset(cell.preset),
            seed=cell.seed,
            scale=workload.scale,
            programs=workload.programs,
            shared_prefix_tokens=workload.shared_prefix,
            cpus=workload.cpus,
            tool_slots=workload.tool_slots,
            tools=_tools(workload.tools),
            contention=parse_contention(workload.contention, workload.cpu_shares),
            routing=hardware.routing,
        ),
        ideal=_ideal(workload, hardware),
    )
    return {
        "rate": result.rate,
        "programs": len(result.programs),
        **result.summary.to_json(),
        "cpu_s": round(time.process_time() - began_s, 3),
    }


@functools.lru_cache(maxsize=4)
def _trace(workload: WorkloadSpec) -> Trace:
    return load_workload(workload.trace, programs=workload.programs, max_context_tokens=workload.max_context)


_tools = functools.lru_cache(maxsize=4)(load_tools)


@functools.lru_cache(maxsize=4)
def _engine(hardware: HardwareSpec) -> EngineSpec:
    return EngineSpec(
        profile=load_profile(hardware.profile),
        pool_tokens=hardware.pool_tokens,
        chunk_tokens=hardware.chunk_tokens,
        tiers=tuple(map(parse_tier, hardware.tiers)),
        replicas=hardware.replicas,
        link_gb_per_s=hardware.link_gb_per_s,
    )


@functools.lru_cache(maxsize=8)
def _ideal(workload: WorkloadSpec, hardware: HardwareSpec) -> IdealTimes:
    """Solo times, computed once for all runs of this process."""
    return IdealTimes(lambda: _engine(hardware).build(preset("fcfs")))
