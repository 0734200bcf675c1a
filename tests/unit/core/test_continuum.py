"""Continuum's rules, worked by hand from the paper's formulas."""

import math

import pytest
from made_facts import MadeFacts

from controlplane.core.model.commands import Release, Retain
from controlplane.core.model.errors import ConfigError
from controlplane.core.model.types import Pressure, Program, Status, seconds
from controlplane.core.policies.memory.lru import Lru
from controlplane.core.policies.presets import PRESETS
from controlplane.core.policies.priority.ttl_first import TtlFirst
from controlplane.core.policies.protocols import STATELESS, EngineShape, Pinned, QueuedCall
from controlplane.core.policies.retention.ttl import Ttl

S = seconds(1)
FULL, EMPTY = Pressure(kv_use_ratio=1.5), Pressure()
ENGINE = EngineShape(pool_blocks=1000, block_tokens=16, chunk_tokens=8192)


def ttl_ns(policy: Ttl, facts: MadeFacts, pressure: Pressure = FULL, context_tokens: int = 4000) -> int:
    program = Program(
        program_id="p",
        root_id="p",
        status=Status.ACTIVE,
        gap_tool="pytest",
        context_tokens=context_tokens,
        kv_blocks=context_tokens // 10,
    )
    _, commands = policy.plan(STATELESS, {"p": program}, [program], facts, pressure, 0)
    return sum(command.ttl_ns for command in commands if isinstance(command, Retain))


# §4.2: tau* = argmax P(tau, f) (T eta + Prefill-Reload) - tau


def test_equation_2_by_hand() -> None:
    facts = MadeFacts(
        seen_gaps_ns={"": [S] * 200, "pytest": [1 * S] * 60 + [3 * S] * 40 + [40 * S] * 20},
        eviction_delay_ns=10 * S,  # T
        memoryfulness=0.5,
        prefill_ns_per_token=S // 4000,  # reload of 4,000 tokens: 1 s
    )
    # benefit 10 * 0.5 + 1 = 6 s. tau = 1: 0.5 * 6 - 1 = 2; 3: 0.8333 * 6 - 3 = 2; 40: 6 - 40; 0: 0.
    assert ttl_ns(Ttl(), facts) == 1 * S, "of equals the shorter"
    # A context of 8,000 tokens takes 2 s to reload: 0.5 * 7 - 1 = 2.5; 0.8333 * 7 - 3 = 2.83
    assert ttl_ns(Ttl(), facts, context_tokens=8000) == 3 * S


def test_a_pin_that_was_set_before_the_tool_was_known_is_released_where_it_is_not_worth_it() -> None:
    pinned = Program(program_id="p", root_id="p", status=Status.ACTIVE, gap_tool="pytest", retained_until_ns=9 * S)
    _, commands = Ttl().plan(STATELESS, {"p": pinned}, [pinned], MadeFacts(), EMPTY, 0)
    assert [type(command) for command in commands] == [Release]


@pytest.mark.parametrize(
    ("all_tools", "own", "expected_s"),
    [
        (100, 0, math.log(8)),  # |S| <= K: T_default, ln(T + reload) = ln(7 + 1)
        (101, 100, 2.0),  # |S[f]| <= K: the durations of all tools
        (101, 101, 3.0),
    ],
)
def test_the_three_stages_of_the_cold_start(all_tools: int, own: int, expected_s: float) -> None:
    facts = MadeFacts(
        seen_gaps_ns={"": [2 * S] * all_tools, "pytest": [3 * S] * own},
        eviction_delay_ns=7 * S,
        prefill_ns_per_token=S // 4000,
    )
    assert ttl_ns(Ttl(), facts) == seconds(expected_s)


def test_static_ttl_is_the_cold_start_for_ever() -> None:
    facts = MadeFacts(seen_gaps_ns={"": [2 * S] * 250, "pytest": [3 * S] * 250}, eviction_delay_ns=7 * S)
    assert ttl_ns(Ttl(learned=False), facts) == seconds(math.log(7))
    assert ttl_ns(Ttl(learned=False), MadeFacts(eviction_delay_ns=S // 2)) == 0
    assert ttl_ns(Ttl(learned=False, ttl_max_s=1.5), facts) == seconds(1.5)


# §4.3: preempted, then within its TTL, then by the program's arrival


def test_a_fixed_time_is_every_pins() -> None:
    """AgentServeSim §6.3."""
    facts = MadeFacts(seen_gaps_ns={"": [S] * 300})
    assert ttl_ns(Ttl(static_s=2.0), facts) == 2 * S
    with pytest.raises(ConfigError, match="static_s"):
        Ttl(static_s=700.0)


def test_where_contexts_come_back_from_the_host_that_is_what_a_pin_saves() -> None:
    """§4.1: 4,000 tokens take 8 s to compute; all of what left is loaded, in half of that or in as long."""
    seen = {"seen_gaps_ns": {"": [5 * S] * 101}, "prefill_ns_per_token": S // 500}
    assert ttl_ns(Ttl(), MadeFacts(**seen, host_hit_ratio=1.0, reload_cost_ratio=0.5)) == 0, "not worth 5 s"
    assert ttl_ns(Ttl(), MadeFacts(**seen, host_hit_ratio=1.0, reload_cost_ratio=1.0)) == 5 * S
    assert ttl_ns(Ttl(), MadeFacts(**seen, host_hit_ratio=0.2, reload_cost_ratio=0.5)) == 5 * S, "most is lost"
    assert ttl_ns(Ttl(), MadeFacts(**seen)) == 5 * S, "there is no host memory"


def call(name: str, arrived: int, queued: int = 0, **more: bool | int) -> QueuedCall:
    return QueuedCall(
        turn_id=name,
        program_id=name,
        queued_at_ns=queued,
        footprint_blocks=1,
        program_arrived_at_ns=arrived,
        **more,  # type: ignore[arg-type]
    )


QUEUE = [
    call("late", 9, queued=1),
    call("early", 1, queued=8),
    call("pinned late", 8, queued=9, pinned=True),
    call("pinned early", 2, queued=9, pinned=True),
    call("preempted", 7, queued=0, retracted=True),
    call("preempted and pinned", 9, queued=0, retracted=True, pinned=True),
]


def order(policy: TtlFirst, calls: list[QueuedCall]) -> list[str]:
    return [one.turn_id for one in policy.order(calls, ENGINE, 0)]


def test_the_queue_of_section_4_3() -> None:
    expected = ["preempted and pinned", "preempted", "pinned early", "pinned late", "early", "late"]
    assert order(TtlFirst(), QUEUE) == expected


def test_program_level_fcfs_alone() -> None:
    expected = ["preempted", "preempted and pinned", "early", "pinned early", "pinned late", "late"]
    assert order(TtlFirst(pinned_first=False), QUEUE) == expected


# §5.2: pins and deadlocks

PINS = [
    Pinned(program_id="first", blocks=10, until_ns=5, program_arrived_at_ns=1),
    Pinned(program_id="second", blocks=10, until_ns=9, program_arrived_at_ns=2),
    Pinned(program_id="third", blocks=10, until_ns=7, program_arrived_at_ns=3),
]


@pytest.mark.parametrize(
    ("shortfall", "gone"), [(0, []), (1, ["third"]), (10, ["third"]), (11, ["third", "second"]), (99, None)]
)
def test_a_deadlock_is_broken_by_latest_program_arrival(shortfall: int, gone: list[str] | None) -> None:
    expected = ["third", "second", "first"] if gone is None else gone
    assert list(Lru(keep_pins=True).unpin(PINS, shortfall, True)) == expected


def test_without_a_deadlock_calls_wait_for_pinned_memory() -> None:
    assert list(Lru(keep_pins=True).unpin(PINS, 99, False)) == []


@pytest.mark.parametrize("stuck", [True, False])
def test_elsewhere_the_pin_that_ends_first_goes_first(stuck: bool) -> None:
    assert list(Lru().unpin(PINS, 15, stuck)) == ["first", "third"]


def test_pins_that_calls_wait_for_may_take_the_whole_pool() -> None:
    """Section 5.2 has no budget: a deadlock of pins is broken by unpinning."""
    budgets = {name: each.memory.pin_budget_ratio for name, each in PRESETS.items()}
    whole = {name for name, ratio in budgets.items() if ratio == 1.0}
    assert whole == {"continuum", "infercept"}
    assert {budgets[name] for name in budgets.keys() - whole} == {0.5}
