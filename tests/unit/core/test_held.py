"""What waits for a slot, in the KV that it asks for."""

import pytest
from support.core_driver import Driver, fixed

from controlplane.core.scheduling import queued_demand as held
from controlplane.core.scheduling.queued_demand import QueuedDemand, queued_demand


def waiting(programs: int, tokens: int = 160) -> Driver:
    """One runs, so many wait; ten turns of 100 s in all are what a program is known to take."""
    driver = Driver(fixed(1))
    driver.pool(total=10_000, block_tokens=16)
    driver.ask("first")
    driver.tick()
    driver.submit("first")
    lives = driver.ledger.estimates.lives
    for _ in range(1000):
        lives.cycled("", 10_000_000_000)
    for index in range(programs):
        driver.ask(f"p{index}", tokens=tokens)
        driver.wait(1)
    return driver


def test_nobody_waits() -> None:
    driver = Driver()
    assert queued_demand(driver.ledger, driver.now_ns) == QueuedDemand()


def test_a_child_that_waits_is_its_roots_demand() -> None:
    driver = waiting(1)
    driver.ask("child", parent="p0", tokens=160)
    found = queued_demand(driver.ledger, driver.now_ns)
    assert (found.programs, found.turns) == (1, 2)
    assert found.kv_tokens >= 320


def test_of_a_long_queue_a_sample_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = waiting(40)
    whole = queued_demand(driver.ledger, driver.now_ns)
    monkeypatch.setattr(held, "_MOST_FORECAST", 10)
    assert queued_demand(driver.ledger, driver.now_ns) == whole  # all are alike
