"""No preset, the clairvoyant neither, gets below the bound; and it is not far below what can be reached."""

import numpy as np
import pytest
from engine_operations import TOY
from experiments import experiment
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.lab.experiment import Hardware
from controlplane.lab.sim.bound import bound, engine_weight, shortest_remaining
from controlplane.lab.sim.clairvoyant import SIMULATED, simulated_preset
from controlplane.lab.sim.ideal_time import ideal_time_ns
from controlplane.lab.sim.profile import load_profile
from controlplane.lab.simulate import bound_of, engine_of, simulate
from controlplane.lab.workload.arrivals import Burst, Closed, Poisson
from controlplane.lab.workload.synthetic import synthesize
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trace import ProgramTrace, Trace, Turn

TURNS = st.tuples(st.integers(1, 900), st.integers(1, 60), st.integers(0, 20_000), st.booleans())
PROGRAMS = st.lists(st.lists(TURNS, min_size=1, max_size=5), min_size=1, max_size=6)


def trace_of(programs: list[list[tuple[int, int, int, bool]]]) -> Trace:
    return Trace(
        programs=tuple(
            ProgramTrace(
                program_id=f"p{i}",
                source="",
                turns=tuple(
                    Turn(input_tokens=n, output_tokens=out, tool="t", tool_ms=float(ms), rewrites=anew)
                    for n, out, ms, anew in turns
                ),
            )
            for i, turns in enumerate(programs)
        ),
        rejected=[],
    )


@settings(max_examples=25)
@given(
    programs=PROGRAMS,
    preset=st.sampled_from(SIMULATED),
    pool_tokens=st.sampled_from([1024, 4096]),
    arrival=st.sampled_from([Poisson(2.0), Poisson(0.1), Burst(1.0, 3), Closed(2)]),
    shared_prefix=st.sampled_from([0, 200]),
    replicas=st.sampled_from([1, 2]),
    profile=st.sampled_from([TOY, load_profile("rtx3090")]),
)
def test_no_preset_gets_below_it(
    programs: list[list[tuple[int, int, int, bool]]], preset: str, replicas: int, **how: object
) -> None:
    spec = experiment(
        trace=trace_of(programs),
        preset=simulated_preset(preset),
        replicas=replicas,
        telemetry=Telemetry.HALF,
        **how,
    )
    found, least = simulate(spec).summary, bound_of(spec)
    if found.programs_ended:
        assert least.jct_mean_s <= found.jct_mean_s * (1 + 1e-9)
    assert least.makespan_s <= found.makespan_s * (1 + 1e-9)


def test_it_is_near_what_the_clairvoyant_reaches() -> None:
    spec = experiment(
        trace=synthesize("swe-bench", programs=40, seed=3),
        arrival=Poisson(0.3),
        profile=None,
        pool_tokens=60_000,
        preset=simulated_preset("clairvoyant"),
    )
    found, least = simulate(spec).summary, bound_of(spec)
    assert 0.45 * found.jct_mean_s < least.jct_mean_s <= found.jct_mean_s
    assert 0.5 * found.makespan_s < least.makespan_s <= found.makespan_s


def test_alone_it_is_nearly_the_solo_time() -> None:
    (program,) = synthesize("swe-bench", programs=1, seed=3).programs
    engine = engine_of(Hardware())
    least = bound([program], engine, 0, [0])
    alone_s = ideal_time_ns(program, engine.build()) / 1e9
    assert 0.95 * alone_s < least.jct_mean_s <= alone_s
    assert least.makespan_s == least.jct_mean_s


def test_what_an_engine_cannot_take_counts_nothing() -> None:
    programs = synthesize("swe-bench", programs=3, seed=3).programs
    engine = engine_of(Hardware(pool_tokens=1000))
    least = bound(programs, engine, 0, [0, 0, 0])
    assert (least.makespan_s, least.jct_mean_s, least.rate) == (0.0, 0.0, 0.0)


def test_memory_below_the_device_and_more_engines_lower_it() -> None:
    programs = synthesize("swe-bench", programs=20, seed=3).programs
    one, tiered, two = (
        bound(programs, engine_of(Hardware(pool_tokens=15_000, **more))).rate
        for more in ({}, {"tiers": ("dram:100000:20",)}, {"replicas": 2})
    )
    assert tiered > one
    assert two == pytest.approx(2 * one)


def test_memory_weighs_most_where_the_pool_is_small() -> None:
    programs = synthesize("five-kinds", programs=20, seed=3).programs
    weights = [engine_weight(programs, engine_of(Hardware(pool_tokens=size))) for size in (90_000, 900_000)]
    assert 0 < weights[0] < weights[1] <= 1


def test_the_shortest_remaining_goes_first() -> None:
    ends = shortest_remaining(np.array([0.0, 1.0, 20.0]), np.array([10.0, 2.0, 1.0]))
    assert list(ends) == [3.0, 12.0, 21.0]
