"""Programs as an operator sees them."""

import pytest
from support.core_driver import Driver, fixed

from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.daemon.api.views import ProgramRow, fair_places, listing


def shown(driver: Driver, **more: bool) -> dict[str, ProgramRow]:
    return {row.program_id: row for row in listing(driver.ledger, driver.now_ns, **more).programs}


def test_who_waits_comes_first_in_the_order_of_the_queue() -> None:
    driver = Driver(fixed(1), ControlRules(stall_s=60))  # the engine idles meanwhile
    for name in ("in", "first", "second"):
        driver.ask(name)
        driver.tick(1)
    found = shown(driver)
    assert list(found) == ["first", "second", "in"]
    assert [found[name].queue_position for name in found] == [1, 2, 0]
    assert found["first"].hold_ns == seconds(2)
    assert found["in"].age_ns == seconds(3)


def test_what_each_does_now() -> None:
    driver = Driver(fixed(0))
    for name in ("reasons", "acts", "idles", "ended"):
        driver.ask(name)
    driver.tick()
    driver.submit("reasons")
    for name in ("acts", "idles", "ended"):
        driver.run_turn(name, prompt=100)
    driver.start_tool("acts", tool="pytest")
    driver.end("ended")
    driver.program("idles").retained_until_ns = driver.now_ns + seconds(9)
    driver.wait(4)
    driver.tick()
    found = shown(driver)
    assert {name: row.phase for name, row in found.items()} == {
        "reasons": "reasoning",
        "acts": "acting",
        "idles": "idle",
    }
    assert (found["acts"].tool, found["acts"].context_tokens) == ("pytest", 100)
    assert (found["idles"].idle_ns, found["idles"].retained_ns) == (seconds(4), seconds(5))
    assert shown(driver, ended=True)["ended"].status == "ended"


def test_children_of_a_held_root_are_marked_too() -> None:
    driver = Driver(fixed(0))
    driver.ask("root")
    driver.ask("child", parent="root")
    driver.send(ev.OperatorOrders(held=("root",)))
    found = shown(driver)
    assert found["root"].held_by_operator
    assert found["child"].held_by_operator
    assert found["child"].queue_position == 0


def test_of_many_some_of_each_kind_are_shown_and_the_rest_is_counted() -> None:
    driver = Driver(fixed(2))
    for number in range(8):
        driver.ask(f"p{number}")
    driver.tick()
    driver.run_turn("p0", prompt=100)
    driver.submit("p1")
    listed = listing(driver.ledger, driver.now_ns, most=4)
    assert [row.program_id for row in listed.programs] == ["p2", "p3", "p0", "p1"]
    assert listed.total == 8
    counted = {each.phase: (each.programs, each.context_tokens) for each in listed.phases}
    assert counted == {"reasoning": (1, 0), "acting": (0, 0), "held": (0, 0), "idle": (1, 100)}
    waiting = listing(driver.ledger, driver.now_ns, queued=True)
    assert ([row.queue_position for row in waiting.programs], waiting.total) == ([1, 2, 3, 4, 5, 6], 6)


@pytest.mark.parametrize(
    ("sizes", "places", "shares"),
    [
        ([10, 10, 10], 9, [3, 3, 3]),
        ([100, 2, 0], 10, [8, 2, 0]),
        ([1, 1, 1], 10, [1, 1, 1]),
        ([5, 5], 0, [0, 0]),
        ([0, 9, 9], 7, [0, 3, 4]),
    ],
)
def test_places_go_to_each_kind_alike(sizes: list[int], places: int, shares: list[int]) -> None:
    assert fair_places(sizes, places) == shares


def test_why_each_that_waits_has_no_slot() -> None:
    driver = Driver(fixed(1), ControlRules(stall_s=60))
    for name in ("in", "held", "next"):
        driver.ask(name)
    driver.tick()
    driver.send(ev.OperatorOrders(held=("held",)))

    def why() -> dict[str, str]:
        driver.tick(0.1)
        listed = listing(driver.ledger, driver.now_ns, holds=driver.controller.holds).programs
        return {row.program_id: row.waits_for for row in listed}

    assert why() == {"in": "", "held": "an operator holds it", "next": "all slots are taken"}
    driver.send(ev.OperatorOrders(draining=True))
    assert why()["held"] == "the node drains"
