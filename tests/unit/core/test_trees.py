"""Programs that wait for sub-agents: gangs, when a parent is expected back, and what becomes of its context."""

from typing import Any

import pytest
from support.core_driver import Driver, of, recounted, sums

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.control import ControlRules
from controlplane.core.errors import ConfigError
from controlplane.core.presets import PRESETS
from controlplane.core.trees import TreeRules, expect, gangs
from controlplane.core.types import Tier, seconds
from controlplane.core.usual import Usual

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


def begun(commands: list[cmd.Command]) -> list[str]:
    """Whose turns were let go, but for the parent's own grant, which is said again with its children's."""
    return [each.program_id for each in of(cmd.Admit, commands) if each.program_id != "parent"]


def ask_all(d: Driver, names: list[str], tokens: int) -> None:
    for name in names:
        d.ask(name, tokens=tokens)


def test_siblings_are_let_in_together_when_there_is_room_for_all() -> None:
    d = driver()
    names = delegates(d)
    ask_all(d, names, 100)
    assert begun(d.tick()) == names
    assert sums(d.ledger) == sums(recounted(d.ledger))


def test_none_of_them_is_let_in_where_not_all_have_room_and_gates_are_not_told_of_them() -> None:
    d = driver()
    names = delegates(d)
    ask_all(d, names, 500)
    commands = d.tick()
    assert (of(cmd.Admit, commands), of(cmd.Adopt, commands)) == ([], [])
    (gang,) = gangs(d.ledger)
    assert ([name for name, _ in gang.children], gang.blocks >= 1000) == (names, True)
    d.finish("other", prompt=50)
    d.end("other")
    d.submit("parent", "parent.aside", blocks=10)  # the engine does not idle
    commands = d.tick(1)
    assert [each.program_id for each in of(cmd.Admit, commands)] == []


def test_a_gang_waits_no_longer_than_its_time() -> None:
    d = driver(gang_s=5)
    names = delegates(d)
    ask_all(d, names, 500)
    assert begun(d.tick(4)) == []
    commands = d.tick(1.5)
    assert begun(commands) == names
    assert [each.program_id for each in of(cmd.Adopt, commands)] == names


def test_a_gang_does_not_wait_while_the_engine_idles() -> None:
    d = driver(gang_s=600)
    names = delegates(d)
    ask_all(d, names, 500)
    assert begun(d.tick(1)) == []
    d.finish("other", prompt=50)
    assert begun(d.tick()) == names


def test_nobody_of_the_queue_gets_the_room_that_a_gang_waits_for() -> None:
    d = driver(gang_s=600)
    names = delegates(d)
    ask_all(d, names, 500)
    d.ask("newcomer", tokens=300)
    assert begun(d.tick(1)) == []
    free = driver(gang_s=0)
    names = delegates(free)
    ask_all(free, names, 500)
    free.ask("newcomer", tokens=300)
    assert begun(free.tick(1))[:2] != [], "without gangs children ride at once"


def test_a_gang_beside_an_aside_or_a_child_that_runs_already_holds_neither() -> None:
    d = driver(gang_s=600)
    names = delegates(d, children=1)
    ask_all(d, names, 100)
    assert begun(d.tick()) == names
    d.submit(names[0], blocks=100)
    d.send(d.tools(ev.ProgramArrived, program_id="parent/2", parent_id="parent"))
    d.ask("parent/2", tokens=900)
    d.ask("parent", "parent.aside", tokens=10)
    assert [each.program_id for each in of(cmd.Admit, d.tick(1))] == ["parent"], (
        "its own turn passes, the child without room does not"
    )


def test_programs_without_children_are_not_looked_at() -> None:
    with_rules, without = driver(gang_s=600), driver(gang_s=0, keep=False, prefetch_s=0)
    for d in (with_rules, without):
        for number in range(5):
            d.ask(f"p{number}", tokens=150)
    assert [type(each) for each in with_rules.tick(1)] == [type(each) for each in without.tick(1)]
    assert gangs(with_rules.ledger) == []


# When a parent is expected back


def test_a_parent_is_expected_back_when_the_last_of_its_children_is_expected_to_end() -> None:
    d = driver()
    names = delegates(d)
    ask_all(d, names, 100)
    d.tick()
    for name, turns in zip(names, (4, 1), strict=True):
        for turn in range(turns):
            d.submit(name, f"{name}.{turn}", blocks=100)
            d.wait(2)
            d.finish(name, f"{name}.{turn}", prompt=100)
            d.wait(1)
    expect(d.ledger, d.now_ns)
    usual = Usual(d.ledger.estimates)
    left = [usual.ahead(d.program(name), 100)[1] * usual.lifetime_ns for name in names]
    assert d.program("parent").back_at_ns - d.now_ns == pytest.approx(max(left), abs=2)
    rate = d.ledger.estimates.return_rate(d.program("parent"), d.now_ns)
    assert rate == pytest.approx(1 / max(left), rel=1e-6)
    for name in names:
        d.end(name)
    expect(d.ledger, d.now_ns)
    assert d.program("parent").back_at_ns == d.now_ns, "at once: all of them have ended"


def test_a_child_that_waits_for_children_of_its_own_is_expected_behind_them() -> None:
    d = driver()
    (child,) = delegates(d, children=1)
    ask_all(d, [child], 100)
    d.tick()
    d.submit(child, blocks=100)
    d.wait(2)
    d.finish(child, prompt=100, tool="Task", calls=1)
    d.wait(2)
    expect(d.ledger, d.now_ns)
    alone_ns = d.program("parent").back_at_ns - d.now_ns
    d.start_tool(child, tool="Task")
    d.send(d.tools(ev.ProgramArrived, program_id="below", parent_id=child))
    d.ask("below", tokens=100)
    d.tick()
    expect(d.ledger, d.now_ns)
    assert d.program("parent").back_at_ns - d.now_ns > alone_ns
    assert d.program("parent").back_at_ns > d.program(child).back_at_ns > d.now_ns


def test_what_was_expected_is_forgotten_with_the_gap() -> None:
    d = driver()
    delegates(d)
    expect(d.ledger, d.now_ns)
    assert d.program("parent").back_at_ns > 0
    d.end_tool("parent", tool="Task")
    d.submit("parent", "parent.2", blocks=220)
    assert d.program("parent").back_at_ns == 0


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


# Memory below the device


def host(d: Driver) -> None:
    d.send(d.engine(ev.PoolSampled, total_blocks=POOL, free_blocks=POOL, block_tokens=1, host_total_blocks=5000))


def test_a_parents_context_goes_below_while_it_waits_and_comes_back_in_time() -> None:
    d = driver(prefetch_s=3)
    host(d)
    d.ledger.estimates.lives.cycled("", seconds(20))  # a turn and the gap behind it
    names = delegates(d)
    ask_all(d, names, 100)
    (demoted,) = of(cmd.Demote, d.tick(1))
    assert (demoted.program_id, "sub-agent" in demoted.reason) == ("parent", True)
    assert of(cmd.Demote, d.tick(1)) == [], "once a gap"
    d.send(d.engine(ev.CommandApplied, command_id=demoted.command_id, program_id="parent"))
    assert d.program("parent").kv_tier is Tier.HOST
    assert of(cmd.Prefetch, d.tick(1)) == []
    for name in names:
        d.end(name)
    (fetched,) = of(cmd.Prefetch, d.tick(1))
    assert fetched.program_id == "parent"
    assert of(cmd.Prefetch, d.tick(1)) == [], "once a gap"


def test_without_memory_below_or_where_it_is_switched_off_nothing_moves() -> None:
    for d in (driver(prefetch_s=3), driver(prefetch_s=0)):
        if d.controller.rules.trees.prefetch_s == 0:
            host(d)
        ask_all(d, delegates(d), 100)
        assert of(cmd.Demote, d.tick(1)) == []


@pytest.mark.parametrize("bad", [{"gang_s": -1}, {"prefetch_s": 4000}])
def test_rules_are_checked(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        TreeRules(**bad)  # type: ignore[arg-type]
