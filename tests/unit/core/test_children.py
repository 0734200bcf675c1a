"""Whose child a program is, told by its agent, and when that is told late."""

from support.core_driver import Driver, fixed, of, recounted, sums

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Status


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


def test_families_have_no_cycles_however_late_they_are_told() -> None:
    d = Driver(fixed(1))
    announce(d, "child", "parent")
    announce(d, "parent", "child")
    announce(d, "parent", "parent")
    assert (d.program("parent").parent_id, d.program("child").root_id) == ("", "parent")


def test_the_child_of_a_program_that_ended_keeps_its_own_slot() -> None:
    d = Driver(fixed(1))
    d.run_turn("parent")
    d.end("parent")
    d.run_turn("child")
    announce(d)
    assert (d.program("child").parent_id, d.program("parent").status) == ("", Status.ENDED)


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
