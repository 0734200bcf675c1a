"""Whom to pin, and for how long."""

import pytest
from made_facts import MadeFacts

from controlplane.core.model.commands import Retain
from controlplane.core.model.types import Pressure, Program, Status, seconds
from controlplane.core.policies.protocols import RetentionPolicy
from controlplane.core.policies.retention.least_waste import LeastWaste
from controlplane.core.policies.retention.never import Never
from controlplane.core.policies.retention.opportunistic import Opportunistic
from controlplane.core.policies.retention.tiers import Tiers
from controlplane.core.policies.retention.ttl import Ttl
from controlplane.core.policies.retention.watermarks import Watermarks

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


@pytest.mark.parametrize("policy", [Never(), Ttl(), LeastWaste(), Tiers(), Watermarks()])
def test_the_papers_policies_lend_no_room(policy: RetentionPolicy[object]) -> None:
    assert not policy.lends
