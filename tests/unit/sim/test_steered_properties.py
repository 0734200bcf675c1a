"""What must hold for every script of operations under every pair of engine policies."""

from itertools import product
from typing import Any

import pytest
from engine_operations import PROFILE, PROFILES, STEERED, Driven, Operation
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controlplane.core.engine_policies import STOCK, EnginePolicies
from controlplane.core.events import TurnEnded
from controlplane.core.memory import MEMORY
from controlplane.core.memory.lru import Lru
from controlplane.core.memory.opportunistic import Opportunistic
from controlplane.core.priority import PRIORITY
from controlplane.core.priority.fcfs import Fcfs
from controlplane.core.priority.mlfq import Mlfq
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.hardware import Profile

POOLS = st.sampled_from([40, 150, 300, 700])
# Short times, so that within a script quotas are used up, windows end and calls rise.
BRISK = Mlfq(quota_chunks=0.2, window_s=0.3, promote_s=0.05, promotions=3)
PRIORITIES = [*(make() for make in PRIORITY.values()), BRISK]
MEMORIES = [
    *(make() for make in MEMORY.values()),
    Lru(keep_pins=True),
    Opportunistic(aligned=False),
    Opportunistic(shrink=False),
]
CHOICES = [EnginePolicies(priority=priority, memory=memory) for priority, memory in product(PRIORITIES, MEMORIES)]


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
    choices = more.pop("choices", ())
    engine = EngineModel(
        more.pop("profile", PROFILE),
        pool_blocks=pool_blocks,
        chunk_tokens=512,
        max_running=6,
        priority=policies.priority,
        memory=policies.memory,
        **more,
    )
    return Driven(engine, choices).run(script)


@settings(max_examples=200)
@given(script=STEERED, pool_blocks=POOLS, policies=st.sampled_from(CHOICES), profile=st.sampled_from(PROFILES))
def test_blocks_are_conserved_and_every_call_ends_once(
    script: list[Operation], pool_blocks: int, policies: EnginePolicies, profile: Profile
) -> None:
    run = driven(script, pool_blocks, policies, choices=CHOICES, profile=profile)
    ended = [event.turn_id for event in run.events if isinstance(event, TurnEnded)]
    assert sorted(ended) == sorted(run.accepted)
    for event in run.events:
        if isinstance(event, TurnEnded):
            assert event.ok == (event.output_tokens == run.accepted[event.turn_id].output_tokens)
    assert run.engine.open_calls() == []


@pytest.mark.parametrize("priority", PRIORITIES, ids=repr)
@pytest.mark.parametrize("memory", [Lru(), Opportunistic(aligned=False)], ids=repr)
@settings(max_examples=100)
@given(script=STEERED, pool_blocks=POOLS, profile=st.sampled_from(PROFILES))
@example(script=STUCK_IN_PART, pool_blocks=150, profile=PROFILE)
def test_decode_jumps_equal_single_steps(
    priority: Any, memory: Any, script: list[Operation], pool_blocks: int, profile: Profile
) -> None:
    policies = EnginePolicies(priority=priority, memory=memory)
    choices = [STOCK, policies]
    jumping = driven(script, pool_blocks, policies, choices=choices, profile=profile)
    stepping = driven(script, pool_blocks, policies, choices=choices, profile=profile, max_jump_steps=1)
    assert jumping.events == stepping.events
    assert jumping.samples == stepping.samples


def test_fcfs_is_among_the_priorities() -> None:
    assert Fcfs() in PRIORITIES
