"""What must hold for every script of operations under every pair of engine policies."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from engine_operations import CXL, DRAM, PROFILES, SCRIPTS, TOY, Driven, Operation
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.model.events import FirstToken, TurnEnded, TurnSubmitted
from controlplane.core.policies.engine_policies import STOCK, EnginePolicies
from controlplane.core.policies.memory import MEMORY
from controlplane.core.policies.memory.lru import Lru
from controlplane.core.policies.memory.opportunistic import Opportunistic
from controlplane.core.policies.priority import PRIORITY
from controlplane.core.policies.priority.mlfq import Mlfq
from controlplane.core.policies.protocols import Fit
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.hardware import Profile
from controlplane.lab.sim.lower_tiers import TierSpec


class Halving:
    """A memory policy double: grants half of every chunk, and nothing when the chunk is one block."""

    shrinks = True
    pins_outlast_waits = False
    pin_budget_ratio = 0.5
    retracts_by_level = False

    def unpin(self, pins: Any, shortfall_blocks: int, stuck: bool) -> list[str]:
        return [pin.program_id for pin in pins]

    def host_rank(self, label: str, parked: bool) -> int:
        return 0

    def fit(self, chunk_blocks: int, shortfall: int, least: int, candidates: Any, now_ns: int) -> Any:
        return Fit(chunk_blocks=chunk_blocks // 2, victims=[(c.program_id, 1) for c in candidates])


POOLS = st.sampled_from([40, 150, 300, 700])
# Short times, so that within a script quotas are used up, windows end and calls rise.
BRISK = Mlfq(quota_chunks=0.2, window_s=0.3, promote_s=0.05, promotions=3)
PRIORITIES = [*(make() for make in PRIORITY.values()), BRISK]
MEMORIES: list[Any] = [
    *(make() for make in MEMORY.values()),
    Lru(keep_pins=True),
    Opportunistic(aligned=False),
    Opportunistic(shrink=False),
    Halving(),
]
CHOICES = [EnginePolicies(priority=one, memory=other) for one, other in product(PRIORITIES, MEMORIES)]
# Those whose decisions do not hang on how many decode steps are computed at once.
JUMPED = [
    EnginePolicies(priority=one, memory=other)
    for one, other in product(PRIORITIES, [Lru(), Opportunistic(aligned=False)])
]


def submitted(gap_ns: int, program: int, prompt_tokens: int, output_tokens: int) -> Operation:
    return Operation("submit", gap_ns, program, prompt_tokens, output_tokens, reusable_tokens=0, ttl_ns=1)


# The last call begins in part and then finds no room, until growth evicts what a shared prefix hangs on.
STUCK_IN_PART = [
    *[submitted(0, 0, 1, 1)] * 5,
    submitted(0, 0, 1644, 55),
    submitted(0, 1, 65, 16),
    submitted(3 * 10**8, 0, 641, 1),
]


def driven(script: list[Operation], pool_blocks: int, policies: EnginePolicies, **more: Any) -> Driven:
    choices, profile = more.pop("choices", ()), more.pop("profile", PROFILES[0])
    engine = EngineModel(
        replace(profile, kv_bytes_per_token=1000),
        pool_blocks=pool_blocks,
        chunk_tokens=512,
        max_running=6,
        priority=policies.priority,
        memory=policies.memory,
        **more,
    )
    return Driven(engine, choices).run(script)


@settings(max_examples=120)
@given(
    script=SCRIPTS,
    pool_blocks=POOLS,
    block_tokens=st.sampled_from([1, 16, 64]),
    policies=st.sampled_from(CHOICES),
    profile=st.sampled_from(PROFILES),
    tiers=st.sampled_from([(), (DRAM,), (DRAM, CXL)]),
)
def test_every_call_ends_once_and_in_order_and_no_block_is_lost(
    script: list[Operation],
    pool_blocks: int,
    block_tokens: int,
    policies: EnginePolicies,
    profile: Profile,
    tiers: tuple[TierSpec, ...],
) -> None:
    options: dict[str, Any] = {"choices": CHOICES, "profile": profile, "tiers": tiers, "block_tokens": block_tokens}
    run = driven(script, pool_blocks * 16 // block_tokens, policies, **options)
    seen: dict[str, list[type]] = {}
    for event in run.events:
        if isinstance(event, TurnSubmitted | FirstToken | TurnEnded):
            seen.setdefault(event.turn_id, []).append(type(event))
        if isinstance(event, TurnEnded):
            call = run.accepted[event.turn_id]
            assert event.cached_tokens <= max(call.reusable_tokens, call.prefix_tokens)
            assert event.cached_tokens < call.prompt_tokens
            assert event.output_tokens <= call.output_tokens
            assert event.ok == (event.output_tokens == call.output_tokens)
    assert set(seen) == set(run.accepted)
    for kinds in seen.values():
        assert kinds in ([TurnSubmitted, FirstToken, TurnEnded], [TurnSubmitted, TurnEnded])
    assert [event.at_ns for event in run.events] == sorted(event.at_ns for event in run.events)
    assert run.engine.open_calls() == []
    used = run.engine.space_time
    assert min(used.decode, used.prefill, used.recompute, used.caching, used.unused) >= -1e-9
    assert used.total == pytest.approx(run.engine.cache.total_blocks * used.at_ps / 1e12)
    if (below := run.engine.cache.below) is not None:
        assert 0 <= below.used_blocks <= below.total_blocks


def same_by_single_steps(
    script: list[Operation], pool_blocks: int, policies: EnginePolicies, profile: Profile
) -> None:
    options: dict[str, Any] = {"choices": [STOCK, policies], "profile": profile}
    jumping = driven(script, pool_blocks, policies, **options)
    stepping = driven(script, pool_blocks, policies, **options, max_jump_steps=1)
    assert jumping.events == stepping.events
    assert jumping.samples == stepping.samples


@settings(max_examples=120)
@given(script=SCRIPTS, pool_blocks=POOLS, policies=st.sampled_from(JUMPED), profile=st.sampled_from(PROFILES))
def test_decode_jumps_equal_single_steps(
    script: list[Operation], pool_blocks: int, policies: EnginePolicies, profile: Profile
) -> None:
    same_by_single_steps(script, pool_blocks, policies, profile)


def test_decode_jumps_equal_single_steps_where_a_call_is_stuck_in_part() -> None:
    for policies in JUMPED:
        same_by_single_steps(STUCK_IN_PART, 150, policies, PROFILES[0])


@settings(max_examples=30)
@given(script=SCRIPTS)
def test_time_never_goes_back(script: list[Operation]) -> None:
    engine = EngineModel(TOY, pool_blocks=300)
    run = Driven(engine)
    for index, operation in enumerate(script):
        run.now_ns = max(0, run.now_ns + operation.gap_ns - 2_000)  # a clock that sometimes steps back
        run.apply(operation, index)
        run.events += engine.advance(run.now_ns)
        run.check_blocks()
    run.finish()
    assert [event.at_ns for event in run.events] == sorted(event.at_ns for event in run.events)
