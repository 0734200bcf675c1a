"""Every tree ends: whatever its shape, the room there is, and the policies."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.core.policies.presets import PRESETS
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Closed, Poisson
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trace import ProgramTrace, Trace, Turn

POOL_TOKENS = 4000

turns = st.builds(
    Turn,
    input_tokens=st.integers(1, POOL_TOKENS // 2),
    output_tokens=st.integers(1, 40),
    tool=st.just("Task"),
    tool_ms=st.sampled_from([0.0, 50.0, 30_000.0]),
)


@st.composite
def forests(draw: Any) -> tuple[ProgramTrace, ...]:
    """Up to twelve programs, each but the first a root or a child of one before it that goes on afterwards."""
    programs: list[ProgramTrace] = []
    for number in range(draw(st.integers(1, 12))):
        own = tuple(draw(st.lists(turns, min_size=1, max_size=4)))
        parents = [each for each in programs if len(each.turns) > 1]
        parent = draw(st.none() | st.sampled_from(parents)) if parents else None
        programs.append(
            ProgramTrace(
                program_id=f"p{number}",
                source="test",
                turns=own,
                parent_id=parent.program_id if parent else "",
                spawn_turn=draw(st.integers(0, len(parent.turns) - 2)) if parent else 0,
                family_tokens=draw(st.sampled_from([0, 500])) if parent else 0,
            )
        )
    return tuple(programs)


@pytest.mark.parametrize("preset", ["penstock", "mars", "mori", "continuum"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    forest=forests(),
    telemetry=st.sampled_from(list(Telemetry)),
    tiers=st.sampled_from([(), ("dram:3000:1",)]),
    arrival=st.sampled_from([Poisson(5.0), Closed(2)]),
)
def test_every_tree_ends(
    preset: str,
    forest: tuple[ProgramTrace, ...],
    telemetry: Telemetry,
    tiers: tuple[str, ...],
    arrival: Any,
) -> None:
    asked = Experiment(
        workload=Workload(trace="in hand", telemetry=telemetry, shared_prefix=100),
        trace=Trace(programs=forest, rejected=[]),
        hardware=Hardware(pool_tokens=POOL_TOKENS, tiers=tiers),
        arrival=arrival,
        preset=PRESETS[preset],
    )
    result = simulate(asked)
    assert {each.program_id for each in result.programs} == {each.program_id for each in forest}
    assert not any(each.failed for each in result.programs)
    ended = {each.program_id: each.ended_ns for each in result.programs}
    assert all(ended[each.program_id] < ended[each.parent_id] for each in forest if each.parent_id)
