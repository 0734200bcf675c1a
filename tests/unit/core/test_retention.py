"""Whom to pin, and for how long."""

import math

import pytest
from made_facts import MadeFacts

from controlplane.core.commands import Pause, Retain
from controlplane.core.errors import ConfigError
from controlplane.core.policies import RetentionPolicy
from controlplane.core.retention.least_waste import LeastWaste
from controlplane.core.retention.never import Never
from controlplane.core.retention.opportunistic import Opportunistic
from controlplane.core.retention.tiers import Tiers
from controlplane.core.retention.ttl import Ttl, best_ttl_ns
from controlplane.core.retention.watermarks import Watermarks
from controlplane.core.types import Pressure, Program, Status, seconds

S = seconds(1)
HALF_FULL = Pressure(kv_use_ratio=0.475)  # half of kv_high: memory costs half of its time


def acting(**fields: object) -> Program:
    values = {
        "program_id": "p",
        "root_id": "p",
        "status": Status.ACTIVE,
        "gap_tool": "bash",
        "context_tokens": 1000,
    }
    return Program(**(values | fields))  # type: ignore[arg-type]


def plan(
    program: Program, facts: MadeFacts, pressure: Pressure, policy: Opportunistic | None = None
) -> list[tuple[str, int]]:
    policy = policy or Opportunistic(cold_start=3)
    _, commands = policy.plan(policy.initial(), {"p": program}, [program], facts, pressure, seconds(50))
    assert all(isinstance(command, Retain) for command in commands)
    return [(c.program_id, c.ttl_ns) for c in commands if isinstance(c, Retain)]


@pytest.mark.parametrize(
    ("benefit_s", "cost", "best_s"),
    [
        # nets at 1, 2, 4, 10 s: P * benefit - tau * cost
        (8.0, 1.0, 4),  # 1, 2, 2 -> the shorter of equals... 2 - 1 = 1, 4 - 2 = 2, 6 - 4 = 2, 8 - 10 = -2
        (20.0, 1.0, 4),  # 4, 8, 11, 10
        (40.0, 1.0, 10),  # 9, 18, 26, 30
        (2.0, 1.0, 0),  # -0.5, -1, -2.5, -8
        (8.0, 0.0, 10),
        (0.0, 0.0, 0),
    ],
)
def test_the_argmax_by_hand(benefit_s: float, cost: float, best_s: int) -> None:
    expected = 2 if (benefit_s, cost) == (8.0, 1.0) else best_s
    assert best_ttl_ns([1 * S, 2 * S, 4 * S, 10 * S], benefit_s * S, cost) == expected * S


def test_nothing_seen_is_no_pin() -> None:
    assert best_ttl_ns([], 5.0 * S, 0.0) == 0


def test_a_known_tool_is_judged_by_its_own_durations() -> None:
    facts = MadeFacts(
        seen_gaps_ns={"": [100 * S] * 8, "bash": [1 * S, 1 * S, 1 * S, 9 * S]},
        eviction_delay_ns=4 * S,
        memoryfulness=0.5,
        prefill_ns_per_token=S // 1000,
    )
    # 4 * 0.5 + 1 = 3 s; at 1 s: 0.75 * 3 - 0.5 = 1.75; at 9 s: 3 - 4.5
    assert plan(acting(), facts, HALF_FULL) == [("p", 1 * S)]


def test_a_tool_seen_too_rarely_is_judged_by_all_tools() -> None:
    facts = MadeFacts(seen_gaps_ns={"": [2 * S] * 8, "bash": [1 * S] * 3}, eviction_delay_ns=4 * S)
    assert plan(acting(), facts, HALF_FULL) == [("p", 2 * S)]


def test_a_full_cache_makes_holding_cost_its_whole_time_and_no_more() -> None:
    facts = MadeFacts(seen_gaps_ns={"": [4 * S] * 8}, eviction_delay_ns=3 * S)
    assert plan(acting(), facts, HALF_FULL) == [("p", 4 * S)]
    assert plan(acting(), facts, Pressure(kv_use_ratio=0.95)) == []
    facts = MadeFacts(seen_gaps_ns={"": [4 * S] * 8}, eviction_delay_ns=5 * S)
    assert plan(acting(), facts, Pressure(kv_use_ratio=3.0)) == [("p", 4 * S)]


def test_an_idle_pool_makes_holding_free_up_to_the_longest_pin() -> None:
    facts = MadeFacts(seen_gaps_ns={"": [1 * S] * 7 + [5000 * S]}, eviction_delay_ns=1)
    assert plan(acting(), facts, Pressure()) == [("p", 600 * S)]


def test_cold_start_takes_durations_as_exponential() -> None:
    facts = MadeFacts(eviction_delay_ns=2 * S, prefill_ns_per_token=S // 1000, memoryfulness=0.1)
    assert plan(acting(), facts, HALF_FULL) == [("p", seconds(math.log(3 / 0.5)))]


def test_cold_start_at_its_edge() -> None:
    facts = MadeFacts(seen_gaps_ns={"": [7 * S] * 3}, eviction_delay_ns=2 * S)
    assert plan(acting(), facts, HALF_FULL) == [("p", seconds(math.log(2 / 0.5)))]
    facts = MadeFacts(seen_gaps_ns={"": [7 * S] * 4}, eviction_delay_ns=20 * S)
    assert plan(acting(), facts, HALF_FULL) == [("p", 7 * S)]


@pytest.mark.parametrize(("delay_s", "use"), [(0.5, 0.475), (0.0, 0.0), (0.9, 0.95)])
def test_cold_start_pins_nobody_when_memory_is_worth_more(delay_s: float, use: float) -> None:
    assert plan(acting(), MadeFacts(eviction_delay_ns=seconds(delay_s)), Pressure(kv_use_ratio=use)) == []


def test_cold_start_in_an_idle_pool_pins_for_the_longest() -> None:
    assert plan(acting(), MadeFacts(eviction_delay_ns=1), Pressure()) == [("p", 600 * S)]


@pytest.mark.parametrize(
    "fields",
    [
        {"status": Status.PAUSED},
        {"status": Status.ENDED},
        {"open_turns": 1},
        {"quarantined": True},
        {"delegating": 1},
    ],
)
def test_who_is_not_pinned(fields: dict[str, object]) -> None:
    assert plan(acting(**fields), MadeFacts(eviction_delay_ns=5 * S), Pressure()) == []


@pytest.mark.parametrize("until_s", [0, 50, 51, 9000])
def test_a_pin_is_decided_anew_when_the_tool_becomes_known(until_s: int) -> None:
    """It began at the turn's end with what all gaps say; the tool's own say more, and hold instead."""
    facts = MadeFacts(seen_gaps_ns={"": [100 * S] * 8, "bash": [7 * S] * 8}, eviction_delay_ns=50 * S)
    assert plan(acting(retained_until_ns=seconds(until_s)), facts, HALF_FULL) == [("p", 7 * S)]


def test_a_pin_runs_from_the_end_of_the_turn() -> None:
    facts = MadeFacts(seen_gaps_ns={"": [7 * S] * 8}, eviction_delay_ns=50 * S)
    assert plan(acting(gap_since_ns=seconds(48)), facts, HALF_FULL) == [("p", 5 * S)]
    assert plan(acting(gap_since_ns=seconds(43)), facts, HALF_FULL) == [], "the gap has lasted longer than it would"


def test_who_gives_its_slot_back_is_not_pinned() -> None:
    facts = MadeFacts(eviction_delay_ns=5 * S)
    overfull = Pressure(kv_total_blocks=100, kv_demand_blocks=101)
    program = acting(gap_since_ns=seconds(49), kv_blocks=60)
    for policy, kinds in ((Opportunistic(), [Pause]), (Opportunistic(lend=False), [Retain])):
        _, commands = policy.plan(policy.initial(), {"p": program}, [program], facts, overfull, seconds(50))
        assert [type(command) for command in commands] == kinds
        assert policy.lends is policy.lend


@pytest.mark.parametrize("policy", [Never(), Ttl(), LeastWaste(), Tiers(), Watermarks()])
def test_the_papers_policies_lend_no_room(policy: RetentionPolicy[object]) -> None:
    assert not policy.lends


def test_never_pins_nobody() -> None:
    policy, program = Never(), acting()
    _, commands = policy.plan(policy.initial(), {"p": program}, [program], MadeFacts(), Pressure(), 0)
    assert list(commands) == []


@pytest.mark.parametrize(
    ("field", "value"), [("cold_start", -1), ("ttl_max_s", 0.0), ("ttl_max_s", 90_000.0), ("kv_high", 0.0)]
)
def test_parameters_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError) as error:
        Opportunistic(**{field: value})  # type: ignore[arg-type]
    assert error.value.field == field


def test_the_cold_start_can_end_before_the_ring_of_durations_is_full() -> None:
    Opportunistic(cold_start=255)
    with pytest.raises(ConfigError):
        Opportunistic(cold_start=256)
