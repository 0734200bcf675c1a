"""Programs that wait for sub-agents: when a parent is expected back, and whether its room is lent meanwhile."""

from typing import Any

from support.core_driver import Driver, recounted, sums

from controlplane.core.model import events as ev
from controlplane.core.model.steps import run
from controlplane.core.model.types import seconds
from controlplane.core.policies.presets import PRESETS
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.core.scheduling.subagents import TreeRules, update_parent_etas

POOL = 1000


def driver(*, pool: int = POOL, **rules: Any) -> Driver:
    """Penstock's policies on an engine of ``pool`` blocks of a token, where another program's turn always runs."""
    d = Driver(PRESETS["penstock"], ControlRules(trees=TreeRules(**rules)))
    d.pool(total=pool, free=pool)
    d.ask("other", tokens=50)
    d.tick(1)
    d.submit("other", blocks=50)
    return d


def delegates(d: Driver, prompt: int = 200, children: int = 2, parent: str = "parent") -> list[str]:
    """A program that has had a turn sends children, whose first turns come to the gate."""
    d.ask(parent, tokens=prompt)
    d.tick(1)
    d.submit(parent, blocks=prompt)
    d.finish(parent, prompt=prompt, tool="Task", calls=1)
    d.start_tool(parent, tool="Task")
    names = [f"{parent}/{number}" for number in range(children)]
    for name in names:
        d.send(d.tools(ev.ProgramArrived, program_id=name, parent_id=parent))
    return names


def ask_all(d: Driver, names: list[str], tokens: int) -> None:
    for name in names:
        d.ask(name, tokens=tokens)


# When a parent is expected back


def test_a_child_that_waits_for_children_of_its_own_is_expected_behind_them() -> None:
    d = driver()
    (child,) = delegates(d, children=1)
    ask_all(d, [child], 100)
    d.tick()
    d.submit(child, blocks=100)
    d.wait(2)
    d.finish(child, prompt=100, tool="Task", calls=1)
    d.wait(2)
    run(update_parent_etas(d.ledger, d.now_ns))
    alone_ns = d.program("parent").back_at_ns - d.now_ns
    d.start_tool(child, tool="Task")
    d.send(d.tools(ev.ProgramArrived, program_id="below", parent_id=child))
    d.ask("below", tokens=100)
    d.tick()
    run(update_parent_etas(d.ledger, d.now_ns))
    assert d.program("parent").back_at_ns - d.now_ns > alone_ns
    assert d.program("parent").back_at_ns > d.program(child).back_at_ns > d.now_ns


def dear(d: Driver) -> None:
    """Computing a context again takes long, on this engine."""
    for tokens in (100, 200, 400):
        d.ledger.estimates.prefill.add(tokens, 0, seconds(tokens))


def test_a_parent_keeps_its_room_where_that_is_worth_more_than_it_costs() -> None:
    d = driver()
    dear(d)
    names = delegates(d)
    ask_all(d, names, 100)
    d.tick()
    assert d.program("parent").lends, "as its children begin it is not weighed yet"
    for name in names:
        d.submit(name, blocks=100)
    d.tick(1)
    assert (d.program("parent").lends, d.program("parent").keep_ratio > 1) == (False, True)
    assert sums(d.ledger) == sums(recounted(d.ledger))
    lending = driver(keep=False)
    dear(lending)
    delegates(lending)
    lending.tick(1)
    assert lending.program("parent").lends, "where that is switched off it lends as ever"
