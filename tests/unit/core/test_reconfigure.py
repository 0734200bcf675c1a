"""Other policies and rules in a running controller."""

from dataclasses import replace

import pytest
from support.core_driver import Driver, fixed

from controlplane.core.model.tenancy import Tenancy, Tenant
from controlplane.core.model.types import Status
from controlplane.core.policies.admission.aimd import Aimd
from controlplane.core.policies.presets import PRESETS, Preset
from controlplane.core.scheduling.rules_and_state import ControlRules


def switch(driver: Driver, preset: Preset, rules: ControlRules | None = None) -> None:
    driver.controller.reconfigure(preset, rules or driver.controller.rules, driver.now_ns)


def test_a_policy_of_the_same_kind_remembers() -> None:
    driver = Driver(PRESETS["mars"])
    driver.pool()
    for number in range(12):
        driver.ask(f"p{number}")
        driver.tick(1)
    grown = driver.controller.state.admission
    assert grown.window > Aimd().window_initial
    switch(driver, replace(PRESETS["mars"], admission=Aimd(beta=0.5)))
    assert driver.controller.state.admission == grown
    switch(driver, PRESETS["fcfs"])
    assert driver.controller.state.admission == PRESETS["fcfs"].admission.initial()


def test_new_bounds_of_the_window_hold_at_once() -> None:
    driver = Driver(PRESETS["mars"])
    driver.pool()
    driver.tick(1)
    assert driver.controller.window.window == Aimd().window_initial
    switch(driver, replace(PRESETS["mars"], admission=Aimd(window_initial=2, window_max=3)))
    driver.tick()
    assert driver.controller.window.window == 3
    assert driver.controller.window.reason.startswith("within its new bounds")
    switch(driver, replace(PRESETS["mars"], admission=Aimd(window_initial=20, window_min=10)))
    driver.tick()
    assert driver.controller.window.window == 10


@pytest.mark.parametrize("before", sorted(PRESETS))
@pytest.mark.parametrize("after", sorted(PRESETS))
def test_every_program_that_waits_is_let_in_after_any_switch(before: str, after: str) -> None:
    """Some run, some use tools, some wait: with the other preset all of them come to their end."""
    driver = Driver(PRESETS[before])
    driver.pool(total=100, free=100)
    driver.cpus(4)
    names = [f"p{number}" for number in range(6)]
    for name in names:
        driver.ask(name, tokens=40)
    for name in driver.admitted():
        driver.submit(name, blocks=40)
    driver.tick(1)
    for name in list(driver.ledger.programs.active)[:2]:
        if driver.program(name).open_turns:
            driver.finish(name, prompt=40, calls=1, tool="bash")
            driver.start_tool(name)
    driver.tick(6)
    switch(driver, PRESETS[after])
    assert set(names) == set(driver.ledger.programs.by_name)
    ended: set[str] = set()
    for _ in range(400):
        driver.tick(1)
        for name in [n for n in names if n not in ended and driver.program(n).status is Status.ACTIVE]:
            program = driver.program(name)
            if program.open_tools:
                driver.end_tool(name)
            if program.open_turns:
                driver.finish(name, prompt=40)
            elif program.queued_turns:
                driver.run_turn(name)
            driver.end(name)
            ended.add(name)
        for name in [n for n in names if n not in ended and driver.program(n).status is Status.PAUSED]:
            driver.ask(name, turn=f"{name}.2", tokens=40)  # its client comes back
    assert ended == set(names)


def test_nobody_waits_for_a_budget_that_is_configured_no_more() -> None:
    d = Driver(fixed(9), ControlRules(tenancy=Tenancy(named={"default": Tenant(turns=1)})))
    d.ask("runs")
    d.tick(1)
    d.submit("runs")
    d.ask("held")
    assert d.admitted(1) == []
    switch(d, fixed(9), ControlRules())
    assert d.admitted(1) == ["held"]
