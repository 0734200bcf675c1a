"""Whose child a program is, told by its agent, and when that is told late."""

import pytest
from support.core_driver import Driver, fixed, of, recounted, sums

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.types import Status


def announce(d: Driver, child: str = "child", parent: str = "parent", **more: object) -> None:
    """By the agent's hooks."""
    d.send(d.tools(ev.ProgramArrived, program_id=child, parent_id=parent, **more))


def adopted(commands: list[cmd.Command]) -> list[tuple[str, str, str]]:
    return [(told.program_id, told.parent_id, told.tenant) for told in of(cmd.Adopt, commands)]


def occupied() -> Driver:
    """The one slot is the parent's, whose tool runs."""
    d = Driver(fixed(1))
    d.run_turn("parent")
    d.start_tool("parent", tool="task")
    assert d.tick() == [] or d.program("parent").status is Status.ACTIVE
    return d


def test_gates_are_told_of_a_child_that_its_agent_announced() -> None:
    d = occupied()
    announce(d)
    assert adopted(d.tick()) == [("child", "parent", "")]
    assert adopted(d.tick()) == [], "once"


@pytest.mark.parametrize("publisher", ["gate", "engine"])
def test_what_gates_and_engines_know_they_are_not_told(publisher: str) -> None:
    d = occupied()
    d.send(getattr(d, publisher)(ev.ProgramArrived, program_id="child", parent_id="parent"))
    assert adopted(d.tick()) == []
    assert d.program("parent").delegating == 0, "nobody is known to wait for it"


def test_an_announced_child_is_let_in_beside_a_full_window_and_a_stranger_is_not() -> None:
    d = occupied()
    announce(d)
    d.ask("child")
    d.ask("stranger")
    commands = d.tick()
    assert [(type(c).__name__, c.program_id) for c in commands if isinstance(c, cmd.Adopt | cmd.Admit)] == [
        ("Adopt", "child"),  # so that the gate knows whose slot it is
        ("Admit", "parent"),
        ("Admit", "child"),
    ]
    assert d.ledger.programs.charges.active_roots == 1


def test_a_child_that_is_announced_behind_its_request_is_let_in_at_once() -> None:
    d = occupied()
    d.ask("first")
    d.ask("child", tokens=40)
    assert d.admitted() == []
    announce(d)
    assert d.controller.next_deadline_ns() == 0
    commands = d.tick()
    assert adopted(commands) == [("child", "parent", "")]
    assert [c.program_id for c in of(cmd.Admit, commands)] == ["parent", "child"]
    assert (d.program("child").status, d.program("parent").delegating) == (Status.ACTIVE, 1)
    assert list(d.ledger.programs.queue) == ["first"]
    assert sums(d.ledger) == sums(recounted(d.ledger))


def test_a_child_whose_root_waits_too_waits_with_it_from_when_it_began_to() -> None:
    d = Driver(fixed(1))
    d.submit("holder")
    d.ask("child", tokens=40)
    since_ns = d.program("child").queued_at_ns
    d.wait(3)
    d.ask("parent", tokens=10)
    announce(d)
    parent = d.program("parent")
    assert (parent.queued_turns, parent.queued_at_ns) == (2, since_ns)
    assert (d.program("child").queued_turns, d.program("child").queued_at_ns) == (0, 0)
    assert list(d.ledger.programs.queue) == ["parent"]
    assert sums(d.ledger) == sums(recounted(d.ledger))
    d.finish("holder")
    d.end("holder")
    assert d.admitted() == ["parent", "child"]


def test_a_slot_that_the_child_has_is_its_roots_from_then_on() -> None:
    d = Driver(fixed(2))
    d.run_turn("child", prompt=40)
    d.run_turn("parent", prompt=100)
    assert d.ledger.programs.charges.active_roots == 2
    announce(d)
    assert (d.ledger.programs.charges.active_roots, d.ledger.programs.charges.demand_blocks) == (1, 140)
    d = Driver(fixed(2))
    d.run_turn("child")
    announce(d)
    assert (d.program("parent").status, d.ledger.programs.charges.active_roots) == (Status.ACTIVE, 1)
    assert list(d.controller.ledger.programs.unasked) == ["parent"]
    assert sums(d.ledger) == sums(recounted(d.ledger))


def test_a_slot_that_the_child_was_granted_is_granted_to_its_root() -> None:
    d = Driver(fixed(2))
    d.ask("child")
    d.tick()
    d.run_turn("child")
    announce(d)
    assert (d.program("parent").status, d.ledger.programs.unasked) == (Status.ACTIVE, {})


def test_a_child_brings_its_own_children_along() -> None:
    d = Driver(fixed(1))
    d.run_turn("root")
    d.ask("grandchild", parent="child")
    assert d.program("grandchild").root_id == "child"
    announce(d, "child", "root")
    assert d.program("grandchild").root_id == "root"
    assert list(d.ledger.programs.children_of("root")) == ["child", "grandchild"]
    assert d.admitted() == ["root", "grandchild"]


def test_families_have_no_cycles_however_late_they_are_told() -> None:
    d = Driver(fixed(1))
    announce(d, "child", "parent")
    announce(d, "parent", "child")
    announce(d, "parent", "parent")
    assert (d.program("parent").parent_id, d.program("child").root_id) == ("", "parent")


def test_of_another_tenants_program_nobody_is_the_child() -> None:
    d = Driver(fixed(1))
    d.send(d.gate(ev.TurnQueued, program_id="parent", turn_id="p.1", tenant="ours"))
    assert d.admitted() == ["parent"]
    announce(d, "early", tenant="theirs")
    d.send(d.gate(ev.TurnQueued, program_id="late", turn_id="l.1", tenant="theirs"))
    announce(d, "late")
    assert (d.program("early").parent_id, d.program("late").parent_id) == ("", "")
    commands = d.tick()
    assert (adopted(commands), of(cmd.Admit, commands)) == ([], [])
    announce(d, "mine", tenant="ours")
    assert adopted(d.tick()) == [("mine", "parent", "ours")]


def test_the_child_of_a_program_that_ended_keeps_its_own_slot() -> None:
    d = Driver(fixed(1))
    d.run_turn("parent")
    d.end("parent")
    d.run_turn("child")
    announce(d)
    assert (d.program("child").parent_id, d.program("parent").status) == ("", Status.ENDED)


def test_a_gate_that_was_restarted_is_told_again() -> None:
    d = occupied()
    announce(d)
    d.tick()
    d.ask("child", parent="parent")
    assert adopted(d.tick()) == [], "this one knows"
    d.ask("child", "child.2")
    assert adopted(d.tick()) == [("child", "parent", "")]


def test_a_request_aside_is_waited_for_by_no_tool() -> None:
    d = occupied()
    announce(d, "parent/title", aside=True)
    assert (adopted(d.tick()), d.program("parent").delegating) == ([("parent/title", "parent", "")], 0)


def test_parents_who_wait_for_children_that_queue_do_not_lock_each_other_out() -> None:
    """Nobody has said whose children they are: they wait like anybody, until the engine has idled for a second."""
    d = Driver(fixed(2))
    for name in ("a", "b"):
        d.run_turn(name)
        d.start_tool(name, tool="task")
        d.ask(f"{name}-child")
    assert d.admitted() == []
    assert d.admitted(after_s=1.1) == ["a-child"]
    assert d.admitted(after_s=1.1) == ["b-child"]


def test_an_ended_childs_name_may_be_another_runs_childs() -> None:
    """Its old root is not revived for it, and does not take a second slot."""
    d = occupied()
    announce(d)
    d.run_turn("child")
    d.end("child")
    d.end("parent")
    d.tick(1)
    d.ask("other")
    assert d.admitted() == ["other"]
    d.submit("other")
    d.finish("other")
    d.start_tool("other", tool="task")
    announce(d, parent="other")
    assert adopted(d.tick()) == [("child", "other", "")]
    d.ask("child", "child.2")
    assert d.admitted() == ["other", "child"]
    d.run_turn("child", "child.2")
    assert d.program("parent").status is Status.ENDED
    assert (d.program("child").root_id, d.ledger.programs.charges.active_roots) == ("other", 1)
    assert sums(d.ledger) == sums(recounted(d.ledger))


def test_an_ended_childs_name_may_be_a_runs_own() -> None:
    d = occupied()
    announce(d)
    d.run_turn("child")
    d.end("child")
    d.end("parent")
    announce(d, parent="")
    d.ask("child", "child.2")
    assert d.admitted() == ["child"]
    assert (d.program("parent").status, d.program("child").root_id) == (Status.ENDED, "child")


@pytest.mark.parametrize("ends", [True, False], ids=["it ended", "it runs"])
def test_a_child_that_is_announced_again_stays_its_roots(ends: bool) -> None:
    d = occupied()
    announce(d)
    announce(d, child="sister")
    d.run_turn("child")
    if ends:
        d.end("child")
    announce(d, parent="sister" if ends else "other")
    assert d.program("child").root_id == "parent"
