"""Why programs are held: each reason by what causes it, and sums that fit the clock."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core_driver import Driver, fixed

from controlplane.core.model import events as ev
from controlplane.core.model.tenancy import Tenancy, Tenant
from controlplane.core.model.types import QueuedProgram, seconds
from controlplane.core.policies.presets import PRESETS
from controlplane.core.policies.protocols import Window
from controlplane.core.scheduling.hold_reasons import Binding, HoldReasons, Reason
from controlplane.core.scheduling.room import fitting_in
from controlplane.core.scheduling.rules_and_state import ControlRules

RULES = ControlRules(stall_s=3600, overdue_s=5)


def driver(window: int = 9, *, pool: int = 0, rules: ControlRules = RULES) -> Driver:
    """An engine on which another program's turn runs all the while."""
    d = Driver(replace(PRESETS["fcfs"], admission=PRESETS["penstock"].admission) if pool else fixed(window), rules)
    if pool:
        d.pool(total=pool, free=pool)
    d.ask("runs", tokens=10)
    d.tick(1)
    d.submit("runs", blocks=10)
    return d


def slots() -> tuple[Driver, str]:
    d = driver(1)
    d.ask("held")
    return d, "held"


def room_now() -> tuple[Driver, str]:
    d = driver(pool=100)
    d.ask("held", tokens=99)
    return d, "held"


def reserved() -> tuple[Driver, str]:
    d = driver(pool=100)
    d.ask("large", tokens=99)
    d.tick(6)
    d.ask("held")
    return d, "held"


def operator() -> tuple[Driver, str]:
    d = driver(1)
    d.ask("held")
    d.send(ev.OperatorOrders(held=("held",)))
    return d, "held"


def drain() -> tuple[Driver, str]:
    d = driver()
    d.send(ev.OperatorOrders(draining=True))
    d.ask("held")
    return d, "held"


def budget() -> tuple[Driver, str]:
    tenancy = Tenancy(named={"default": Tenant(turns=1)})
    d = driver(rules=replace(RULES, tenancy=tenancy))
    d.ask("held")
    return d, "held"


def away() -> tuple[Driver, str]:
    d = driver(1)
    d.ask("held")
    d.tick(60)
    return d, "held"


def tenant_turn() -> tuple[Driver, str]:
    named = {"ours": Tenant(share=0.9), "theirs": Tenant()}
    d = driver(pool=100, rules=replace(RULES, tenancy=Tenancy(named=named), overdue_s=3600))
    for name, account, tokens in (("large", "ours", 99), ("held", "theirs", 10)):
        d.send(d.gate(ev.TurnQueued, program_id=name, turn_id=name, prompt_tokens=tokens, account=account))
    return d, "held"


def group() -> tuple[Driver, str]:
    d = Driver(PRESETS["penstock"])
    d.pool()
    for name in ("first", "held"):
        ids = {"program_id": name, "turn_id": name, "group_id": "g", "group_size": 2}
        d.send(d.gate(ev.TurnQueued, prompt_tokens=10, **ids))
    d.tick()
    d.submit("first", "first")
    return d, "held"


CAUSES = {
    Reason.SLOTS: slots,
    Reason.GROUP: group,
    Reason.ROOM_NOW: room_now,
    Reason.RESERVED: reserved,
    Reason.TENANT_TURN: tenant_turn,
    Reason.OPERATOR: operator,
    Reason.DRAIN: drain,
    Reason.BUDGET: budget,
}


@pytest.mark.parametrize("reason", CAUSES)
def test_a_hold_has_the_reason_that_caused_it(reason: Reason) -> None:
    d, held = CAUSES[reason]()
    since_ns = d.now_ns
    for _ in range(10):
        d.tick(1)
    assert d.program(held).queued_at_ns, "it is held"
    assert d.controller.holds.now(held).reason is reason
    found = {each.reason: ns for each, ns in d.controller.holds.of(held, since_ns, d.now_ns)}
    assert found[reason] >= seconds(9), found
    assert sum(found.values()) == d.now_ns - since_ns


@pytest.mark.parametrize(
    ("order", "ahead", "binding", "passed_over"),
    [
        ([(40, 0)], 30, Reason.SLOTS, {0: Reason.ROOM_AHEAD}),
        ([(140, 1), (20, 1)], 30, Reason.SLOTS, {0: Reason.ROOM_NOW}),
        ([(140, 1)] * 65, 30, Reason.SCAN_LIMIT, dict.fromkeys(range(64), Reason.ROOM_NOW)),
        ([(20, 1)] * 3, 30, Reason.SLOTS, {}),
    ],
)
def test_who_is_passed_over_has_its_own_reason(
    order: list[tuple[int, int]], ahead: int, binding: Reason, passed_over: dict[int, Reason]
) -> None:
    queue = [
        QueuedProgram(program_id=f"{n}", blocks=blocks, arrived_at_ns=0, queued_at_ns=9, turn_index=turns)
        for n, (blocks, turns) in enumerate(order)
    ]
    window = Window(limit=0, window=0.0, reason="", room_blocks=(100,), ahead_blocks=(float(ahead),))
    found = fitting_in(queue, 2, window, lambda each: (float(each.blocks),), -1)
    assert found.binding.reason is binding
    assert {int(name): each.reason for name, each in found.passed_over.items()} == passed_over


def test_a_freeze_in_which_the_clock_stood_counts_for_who_waited_then() -> None:
    d, held = away()
    d.controller.holds.away(d.now_ns, seconds(8))
    assert d.controller.holds.of(held, d.now_ns - seconds(60), d.now_ns) == [(Binding(Reason.AWAY), seconds(68))]
    d.tick(1)
    found = d.controller.holds.of("later", d.now_ns, d.now_ns + seconds(1))
    assert found == [(Binding(Reason.SLOTS), seconds(1))]


STEPS = st.lists(
    st.tuples(
        st.integers(1, 2 * seconds(1)),
        st.sampled_from(list(Reason)),
        st.sampled_from([None, Reason.OPERATOR, Reason.ROOM_NOW]),
    ),
    min_size=2,
    max_size=60,
)


@given(STEPS, st.integers(0, 59))
def test_a_holds_parts_sum_to_it_and_each_is_what_was_binding(
    steps: list[tuple[int, Reason, Reason | None]], begins: int
) -> None:
    """Of one that began to wait at a tick, against a plain account of each step."""
    holds, now_ns = HoldReasons(), seconds(1000)
    begins = min(begins, len(steps) - 1)
    since_ns, expected = 0, dict[Reason, int]()
    for number, (took_ns, reason, own) in enumerate(steps):
        holds.tick(now_ns, Binding(reason), {"p": Binding(own)} if own and number >= begins else {}, seconds(1))
        if number == begins:
            since_ns = now_ns
        if number >= begins:
            expected[own or reason] = expected.get(own or reason, 0) + took_ns
        now_ns += took_ns
    found = {each.reason: ns for each, ns in holds.of("p", since_ns, now_ns)}
    assert found == expected
    assert {each.reason: ns for each, ns in holds.of("p", since_ns, now_ns)} == expected, "to look changes nothing"


def test_an_hour_of_changes_is_kept_in_bounded_memory_and_is_about_right() -> None:
    holds, now_ns = HoldReasons(), seconds(1000)
    reasons = (Reason.SLOTS, Reason.ROOM_NOW)
    for number in range(36_000):
        holds.tick(now_ns, Binding(reasons[number % 2]), {}, seconds(1))
        now_ns += seconds(0.1)
    assert len(holds._at_ns) <= 4096
    found = {each.reason: ns for each, ns in holds.of("p", now_ns - seconds(1800), now_ns)}
    assert all(found[reason] == pytest.approx(seconds(900), rel=0.05) for reason in reasons), found
