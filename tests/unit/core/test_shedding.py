"""Newcomers that would wait for longer than they can are refused as they come; nobody that has begun is."""

import pytest
from support.core_driver import Driver, fixed, of

from controlplane.core.estimators.departures import Departures
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds
from controlplane.core.scheduling.rules_and_state import ControlRules

EACH_S = 10


def crowded(ends: int = 12, **rules: float) -> Driver:
    """One slot, of which a program is done with every ten seconds while others wait."""
    driver = Driver(fixed(1), ControlRules(stall_s=86_400, **rules))
    for number in range(ends + 1):
        driver.ask(f"old{number}")
    for number in range(ends):
        driver.tick()
        driver.run_turn(f"old{number}")
        for _ in range(EACH_S):
            driver.tick(1)
        driver.end(f"old{number}")
    driver.tick()
    driver.run_turn(f"old{ends}")
    return driver


def ask(driver: Driver, name: str, timeout_s: float) -> None:
    ids = {"program_id": name, "turn_id": f"{name}.new"}
    driver.send(driver.gate(ev.TurnQueued, prompt_tokens=10, timeout_ns=seconds(timeout_s), **ids))


def refused(driver: Driver) -> dict[str, cmd.Refuse]:
    return {each.program_id: each for each in of(cmd.Refuse, driver.tick(1))}


def test_who_would_wait_too_long_is_told_so_within_a_control_interval() -> None:
    driver = crowded()
    for number in range(10):
        ask(driver, f"new{number}", timeout_s=94)
    found = refused(driver)
    assert sorted(found) == [f"new{number}" for number in range(5, 10)]
    first = found["new5"]
    assert first.code == "expected_wait"
    assert first.reason == "5 programs are before it: about 61 s to wait"
    assert first.ttl_ns == seconds(30), "not at once again, however little is lacking"
    assert refused(driver) == {}, "who was taken is not refused later"
    assert len(driver.ledger.programs.queue) == 5


def test_with_time_enough_all_may_wait_and_how_long_is_remembered() -> None:
    driver = crowded()
    ask(driver, "a", timeout_s=600)
    ask(driver, "b", timeout_s=600)
    assert refused(driver) == {}
    assert driver.program("a").urgent_at_ns == driver.now_ns + seconds(600 * 0.6)
    promised = [driver.program(name).promised_ns / 1e9 for name in "ab"]
    assert promised == pytest.approx([EACH_S, 2 * EACH_S], rel=0.2)
    driver.wait(3)
    driver.end("old12")
    assert driver.admitted() == ["a"]
    departures = driver.ledger.estimates.departures
    assert departures.missed.value / 1e9 == pytest.approx(promised[0] - 4, abs=1.1)


@pytest.mark.parametrize("ends", [0, 5])
def test_as_long_as_nobody_knows_how_fast_it_goes_nobody_is_refused(ends: int) -> None:
    driver = crowded(ends)
    for number in range(50):
        ask(driver, f"new{number}", timeout_s=11)
    assert refused(driver) == {}


def test_a_daemon_that_follows_judges_no_newcomers_and_keeps_none() -> None:
    driver = crowded()
    ask(driver, "new", timeout_s=1)
    driver.wait(1)
    driver.controller.follow(driver.now_ns)
    assert driver.ledger.gates.newcomers == {}


def test_who_has_begun_is_not_refused_and_goes_before_newcomers_that_are_overdue() -> None:
    driver = crowded(overdue_s=100)
    for number in range(3):
        ask(driver, f"new{number}", timeout_s=600)
    driver.wait(1)
    driver.controller.replay_command(cmd.Pause(command_id=1000, program_id="old12"), driver.now_ns)
    driver.send(driver.gate(ev.TurnQueued, program_id="old12", turn_id="again", prompt_tokens=10, timeout_ns=1))
    decided = driver.tick(120)
    assert [each.program_id for each in of(cmd.Admit, decided)] == ["old12"]
    assert of(cmd.Refuse, decided) == []


def test_time_without_a_queue_says_nothing_of_how_fast_a_node_is() -> None:
    departures = Departures()
    for _ in range(9):
        departures.passed(seconds(5))
        departures.ended()
    assert departures.each_ns == pytest.approx(seconds(40 / 9), rel=0.01)
    departures.undo_end()
    assert len(departures.ends_ns) == 8
    departures.passed(seconds(100))
    assert departures.each_ns > seconds(15), "a node that ends nobody any more is slow"
