"""Autellix's order and InferCept's choice, worked by hand."""

import pytest
from made_facts import MadeFacts

from controlplane.core.model.commands import Command, Demote, Discard, Retain
from controlplane.core.model.types import Pressure, Program, Status, seconds
from controlplane.core.policies.priority.plas import Plas
from controlplane.core.policies.protocols import EngineShape, QueuedCall
from controlplane.core.policies.retention.least_waste import LeastWaste, Watched

S = seconds(1)
ENGINE = EngineShape(pool_blocks=1000, block_tokens=16, chunk_tokens=1000)


# Autellix


@pytest.mark.parametrize(
    ("served", "level"), [(0, 0), (1000, 0), (1001, 1), (2000, 1), (2001, 2), (4000, 2), (8001, 4), (10**9, 7)]
)
def test_classes_double(served: int, level: int) -> None:
    assert Plas().level(5, served, ENGINE) == level
    assert Plas(quantum_chunks=2.0).level(5, 2 * served, ENGINE) == level
    assert Plas(classes=3).level(999, served, ENGINE) == min(2, level), "the footprint says nothing"


def test_the_least_served_program_goes_first_and_who_starves_before_it() -> None:
    def call(name: str, served: int, queued_s: float) -> QueuedCall:
        return QueuedCall(
            turn_id=name,
            program_id=name,
            queued_at_ns=seconds(queued_s),
            footprint_blocks=1,
            served_tokens=served,
        )

    calls = [
        call("old", 90_000, 41),
        call("young", 10, 99),
        call("like it", 900, 98),
        call("middling", 1500, 60),
        call("starves", 90_000, 40),
    ]
    ordered = Plas().order(calls, ENGINE, seconds(100))
    assert [c.turn_id for c in ordered] == ["starves", "like it", "young", "middling", "old"]


def test_service_is_never_forgotten() -> None:
    assert Plas().window_ns > seconds(86_400 * 365)


# InferCept


def plan(
    program: Program, now_s: float, *, state: Watched | None = None, host: int = 0, copied: float = 0.0
) -> tuple[Watched, list[Command]]:
    """100 blocks of 10,000 tokens, which take 4 s to prefill; 250 blocks are others'.

    ``copied``: what loading was seen to take of that; 0: nothing was loaded yet.
    """
    policy = LeastWaste()
    facts = MadeFacts(
        prefill_ns_per_token=4 * S // 10_000, host_hit_ratio=float(copied > 0), reload_cost_ratio=copied or 1.0
    )
    pressure = Pressure(kv_demand_blocks=350, host_total_blocks=host)
    changed = [program] if program.retained_until_ns == 0 else []
    looked, commands = policy.plan(
        state or policy.initial(), {"p": program}, changed, facts, pressure, seconds(now_s)
    )
    return looked, list(commands)


def acting(**fields: object) -> Program:
    values = {
        "program_id": "p",
        "root_id": "p",
        "status": Status.ACTIVE,
        "kv_blocks": 100,
        "context_tokens": 10_000,
        "open_tools": 1,
        "tool_started_at_ns": 10 * S,
    }
    return Program(**(values | fields))  # type: ignore[arg-type]


def test_every_context_is_preserved_when_its_tool_begins() -> None:
    _, commands = plan(acting(), 10)
    assert commands == [
        Retain(program_id="p", ttl_ns=600 * S, reason="preserve: its tool has only begun"),
    ]


@pytest.mark.parametrize(
    ("after_s", "host", "copied", "expected"),
    [
        (4, 1, 0.5, None),
        (4.1, 1, 0.5, Demote),
        (0.1, 1, 0.0, Demote),  # what it costs is learned so
        (4.1, 0, 0.5, None),
        (12.1, 0, 0.5, Discard),
    ],
)
def test_it_is_swapped_where_two_copies_waste_less(
    after_s: float, host: int, copied: float, expected: type | None
) -> None:
    """2 x 2 s, in which 100 blocks waste 400 block-seconds."""
    _, commands = plan(acting(retained_until_ns=600 * S), 10 + after_s, host=host, copied=copied)
    assert [type(command) for command in commands] == ([expected] if expected else [])


def test_without_a_reported_tool_the_gap_counts() -> None:
    kept = acting(retained_until_ns=600 * S, open_tools=0, idle_since_ns=50 * S)
    assert plan(kept, 60)[1] == []
    assert len(plan(kept, 63)[1]) == 1
    assert plan(acting(retained_until_ns=600 * S, open_tools=0), 60)[1] == []


@pytest.mark.parametrize("fields", [{"open_turns": 1}, {"status": Status.PAUSED}, {"retained_until_ns": 59 * S}])
def test_who_holds_no_pin_in_a_gap_is_left_alone(fields: dict[str, object]) -> None:
    assert plan(acting(**({"retained_until_ns": 600 * S} | fields)), 60)[1] == []
