"""Arbitrary but valid inputs for policies: what the controller and an engine could hand them."""

from hypothesis import strategies as st

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.types import Pressure, Program, QueuedProgram, Replica, Status, Tier, seconds
from controlplane.core.policies.protocols import EngineShape, QueuedCall, Resident

ratios = st.floats(0, 2)
blocks = st.integers(0, 200_000)
counts = st.integers(0, 5000)
times_ns = st.integers(0, seconds(100_000))
tool_names = st.sampled_from(["", "bash", "pytest", "search"])

replicas = st.lists(
    st.builds(
        Replica,
        name=st.integers(0, 9).map("r{}".format),
        total_blocks=blocks,
        free_blocks=blocks,
        evictable_blocks=blocks,
        retained_blocks=blocks,
        demand_blocks=blocks,
        turns=counts,
        turn_blocks=blocks,
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda replica: replica.name,
).map(lambda found: sorted(found, key=lambda replica: replica.name))

pressures = st.builds(
    Pressure,
    observed_at_ns=times_ns,
    kv_total_blocks=blocks,
    kv_free_blocks=blocks,
    kv_evictable_blocks=blocks,
    kv_retained_blocks=blocks,
    kv_demand_blocks=blocks,
    kv_forecast_blocks=st.just(()) | st.lists(blocks, min_size=16, max_size=16).map(tuple),
    running_blocks=blocks,
    kv_use_ratio=ratios,
    host_total_blocks=blocks,
    host_used_blocks=blocks,
    tools_active=counts,
    tools_waiting=counts,
    tools_per_program=st.floats(0, 100),
    tool_slowdown_ratio=st.floats(0, 1000),
    cpus=st.floats(0, 1024),
    cpu_use_ratio=st.floats(0, 1),
    cpu_stall_ratio=st.floats(0, 1),
    programs_active=counts,
    queue_length=counts,
    queued_blocks_mean=st.just(0.0) | st.floats(1, 1e6),
    cpu_overloaded=st.booleans(),
    kv_overloaded=st.booleans(),
    kv_has_slack=st.booleans(),
    replicas=st.just(()) | replicas.map(tuple),
)

cycles = st.lists(st.tuples(times_ns, times_ns), max_size=8).map(
    lambda pairs: tuple(ns for pair in pairs for ns in pair)
)
labels = st.sampled_from(["", "busy", "idle", "inactive"])

queues = st.lists(
    st.builds(
        QueuedProgram,
        program_id=st.integers(0, 99).map("p{}".format),
        blocks=st.integers(1, 5000),
        arrived_at_ns=st.integers(0, 50),
        queued_at_ns=st.integers(1, 50),
        turn_index=st.integers(0, 3),
        kv_tier=st.sampled_from(Tier),
        cycles=cycles,
    ),
    max_size=12,
    unique_by=lambda waiting: waiting.program_id,
)


@st.composite
def facts(draw: st.DrawFn) -> Estimates:
    """The real estimators after some history."""
    estimates = Estimates(block_tokens=draw(st.sampled_from([1, 16, 64])))
    for tool, duration_ns, times in draw(
        st.lists(st.tuples(tool_names, st.integers(1, seconds(900)), st.sampled_from([1, 5, 120])), max_size=4)
    ):
        for _ in range(times):
            estimates.tool_ended(tool, duration_ns, crowded=False)
            estimates.gaps.add(tool, duration_ns)
    for turns in draw(st.lists(st.integers(1, 60), max_size=4)):
        estimates.turns.add(turns)
        estimates.lives.ended("", turns, expected_tokens=0, actual_tokens=0)
    for average, most in (
        (estimates.eviction_delay, seconds(60)),
        (estimates.output, 4000),
        (estimates.service, seconds(60)),
    ):
        if draw(st.booleans()):
            average.add(draw(st.integers(0, most)))
    if draw(st.booleans()):
        estimates.sharing.alone_ns, estimates.sharing.service_ns = sorted(
            draw(st.tuples(*[st.floats(1, 1e12)] * 2))
        )
    for new, cached, duration_ns in draw(
        st.lists(st.tuples(st.integers(64, 9000), st.integers(0, 9000), st.integers(1, seconds(9))), max_size=3)
    ):
        estimates.prefill.add(new, cached, duration_ns)
    return estimates


@st.composite
def programs(draw: st.DrawFn) -> dict[str, Program]:
    """Programs in every state, with families."""
    made: dict[str, Program] = {}
    for index in range(draw(st.integers(0, 6))):
        name = f"p{index}"
        parent = draw(st.sampled_from(["", *(p for p in made if not made[p].parent_id)]))
        made[name] = Program(
            program_id=name,
            parent_id=parent,
            root_id=parent or name,
            status=draw(st.sampled_from(Status)),
            arrived_at_ns=draw(times_ns),
            turn_index=draw(st.integers(0, 50)),
            open_turns=draw(st.integers(0, 2)),
            open_tools=draw(st.integers(0, 2)),
            idle_since_ns=draw(times_ns),
            context_tokens=draw(st.integers(0, 200_000)),
            kv_blocks=draw(blocks),
            queued_turns=draw(st.integers(0, 2)),
            queued_blocks=draw(blocks),
            cycles=draw(cycles),
            phase_since_ns=draw(st.just(0) | times_ns),
            kv_tier=draw(st.sampled_from(Tier)),
            service_ns=draw(times_ns),
            tool=draw(tool_names),
            gap_since_ns=draw(st.just(0) | times_ns),
            gap_tool=draw(tool_names),
            lends=draw(st.booleans()),
            keep_ratio=draw(st.just(-1.0) | st.floats(0, 100)),
            delegating=draw(st.integers(0, 1)),
            tool_started_at_ns=draw(times_ns),
            retained_until_ns=draw(times_ns),
            replica=draw(st.sampled_from(["", "r1", "r2", "gone"])),
            warm=draw(st.booleans()),
            quarantined=draw(st.booleans()),
        )
    return made


shapes = st.builds(
    EngineShape,
    pool_blocks=st.integers(1, 200_000),
    block_tokens=st.sampled_from([1, 16, 64, 4096]),
    chunk_tokens=st.integers(1, 65_536),
)

calls = st.lists(
    st.builds(
        QueuedCall,
        turn_id=st.integers(0, 99).map("t{}".format),
        program_id=st.integers(0, 9).map("p{}".format),
        queued_at_ns=st.integers(0, 50),
        footprint_blocks=st.integers(0, 5000),
        program_arrived_at_ns=st.integers(0, 50),
        served_tokens=st.integers(0, 10**7),
        retracted=st.booleans(),
        label=labels,
    ),
    max_size=12,
    unique_by=lambda call: call.turn_id,
)

residents = st.lists(
    st.builds(
        Resident,
        program_id=st.integers(0, 99).map("p{}".format),
        blocks=st.integers(1, 500),
        last_used_ns=times_ns,
        level=st.integers(0, 4),
        parked=st.booleans(),
        label=labels,
    ),
    max_size=8,
    unique_by=lambda resident: resident.program_id,
).map(lambda found: sorted(found, key=lambda resident: resident.last_used_ns))
