"""What a sweep's file leaves to be found: programs, pools sized by them, and the rate at which a node saturates.

``load:X`` stands for Poisson arrivals at X times the rate that no order of programs could sustain more of, and
``load:X:N`` for bursts of N at that mean rate. That rate is the bound's (``lab/sim/bound.py``): it needs no run,
and no preset is favoured by it. What a real order sustains lies below it.
"""

import functools
import statistics

from controlplane.core.errors import ConfigError
from controlplane.core.presets import preset
from controlplane.lab.runs import load_tools, load_workload
from controlplane.lab.sim.bound import Bound
from controlplane.lab.sim.bound_of_run import bound_of
from controlplane.lab.sim.contention import parse_contention
from controlplane.lab.sim.lower_tiers import parse_tier
from controlplane.lab.sim.profile import load_profile
from controlplane.lab.sim.simulate import EngineSpec, SimSpec
from controlplane.lab.sweep.model import HardwareSpec, WorkloadSpec
from controlplane.lab.workload.arrivals import Arrival, Closed, at_rate, parse_arrival
from controlplane.lab.workload.trace import Trace

_LOAD = "load:"
_LONGEST_RATIO = 1.05  # of the longest context: a pool that is sized by programs runs every one of them
tools_of = functools.lru_cache(maxsize=4)(load_tools)


def check_arrival(text: str) -> None:
    """Raises ``ConfigError`` for arrivals that make no sense."""
    _at_load(text, 1.0)


def resolved(text: str, workload: WorkloadSpec, hardware: HardwareSpec) -> Arrival:
    """The arrivals on that hardware: a load as a rate, any other open rate times the hardware's factor."""
    if text.startswith(_LOAD):
        return _at_load(text, saturation_rate(workload, hardware))
    arrival = parse_arrival(text)
    return arrival if isinstance(arrival, Closed) else at_rate(arrival, hardware.rate_factor * arrival.rate)


def _at_load(text: str, saturation: float) -> Arrival:
    if not text.startswith(_LOAD):
        return parse_arrival(text)
    load, _, number = text.removeprefix(_LOAD).partition(":")
    try:
        arrival = parse_arrival(f"burst:{load}:{number}" if number else f"poisson:{load}")
    except ConfigError:
        help_ = "expected load:X (times the saturation rate) or load:X:N (in bursts of N)"
        raise ConfigError(f"arrival: {help_}, got {text!r}", field="arrival") from None
    if isinstance(arrival, Closed) or not saturation:
        raise ConfigError(f"arrival: {text!r}: no program fits the engine, so there is no load", field="arrival")
    return at_rate(arrival, saturation * arrival.rate)


def saturation_rate(workload: WorkloadSpec, hardware: HardwareSpec) -> float:
    """Programs a second that no order can sustain more of; 0 where none fits. Raises ``ConfigError``."""
    return _bound(workload, hardware, "closed:1", 1).rate


def bound_jct_s(workload: WorkloadSpec, hardware: HardwareSpec, arrival: str, seed: int) -> float:
    """The mean JCT that no order can beat, with those arrivals."""
    return _bound(workload, hardware, arrival, seed).jct_mean_s


@functools.lru_cache(maxsize=256)
def _bound(workload: WorkloadSpec, hardware: HardwareSpec, arrival: str, seed: int) -> Bound:
    return bound_of(run_of(workload, hardware, parse_arrival(arrival), seed))


def run_of(workload: WorkloadSpec, hardware: HardwareSpec, arrival: Arrival, seed: int) -> SimSpec:
    """The run, but for its preset, rules and telemetry."""
    return SimSpec(
        trace=trace_of(workload),
        arrival=arrival,
        engine=engine_of(workload, hardware),
        preset=preset("fcfs"),
        seed=seed,
        scale=workload.scale,
        programs=workload.programs,
        shared_prefix_tokens=workload.shared_prefix,
        cpus=workload.cpus,
        tool_slots=workload.tool_slots,
        tools=tools_of(workload.tools),
        contention=parse_contention(workload.contention, workload.cpu_shares),
        routing=hardware.routing,
    )


@functools.lru_cache(maxsize=32)
def trace_of(workload: WorkloadSpec) -> Trace:
    """The workload's programs, not scaled. Raises ``ConfigError``."""
    return load_workload(
        workload.source,
        programs=workload.programs,
        max_context_tokens=workload.max_context,
        humans=workload.humans,
    )


@functools.lru_cache(maxsize=256)
def engine_of(workload: WorkloadSpec, hardware: HardwareSpec) -> EngineSpec:
    """The engine, its pool sized by the workload's programs where the hardware says so."""
    return EngineSpec(
        profile=load_profile(hardware.profile),
        pool_tokens=_pool_tokens(workload, hardware.pool_programs) or hardware.pool_tokens,
        chunk_tokens=hardware.chunk_tokens,
        max_running=hardware.max_running,
        tiers=tuple(map(parse_tier, hardware.tiers)),
        replicas=hardware.replicas,
        link_gb_per_s=hardware.link_gb_per_s,
    )


def _pool_tokens(workload: WorkloadSpec, programs: float) -> int:
    if not programs:
        return 0
    contexts = [program.context_tokens for program in workload.scale.apply(trace_of(workload)).programs]
    return round(max(programs * statistics.fmean(contexts), _LONGEST_RATIO * max(contexts)))


def found(workload: WorkloadSpec, hardware: HardwareSpec) -> str:
    """What was found for the two, in words."""
    engine = engine_of(workload, hardware)
    return (
        f"{workload.title} on {hardware.title}: a pool of {engine.size_tokens:,} tokens, saturated at "
        f"{saturation_rate(workload, hardware):.4g} programs/s"
    )
