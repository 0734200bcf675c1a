"""A tool that waits for a child program: a sub-agent's run, told by the agent's hooks."""

from support.core_driver import Driver, of, recounted, sums

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds
from controlplane.core.policies.presets import PRESETS


def begin_child(d: Driver) -> None:
    d.send(d.tools(ev.ProgramArrived, program_id="child", parent_id="parent"))


def test_a_parent_lends_its_room_until_its_child_has_ended() -> None:
    """It comes back when the child has, and the child needs the room: whatever the policy."""
    d = Driver()
    d.run_turn("parent", prompt=100)
    d.start_tool("parent")
    assert d.ledger.programs.demand_blocks == 100
    begin_child(d)
    assert (d.program("parent").lends, d.ledger.programs.demand_blocks) == (True, 0)
    assert of(cmd.Pause, d.tick(5)) == []
    assert d.program("parent").lends, "while it delegates"
    d.end_tool("parent")
    d.tick(1)
    assert (d.program("parent").lends, d.ledger.programs.demand_blocks) == (False, 100)
    d.start_tool("parent", "again")
    begin_child(d)
    d.submit("parent", "parent.2", blocks=120)
    assert (d.program("parent").lends, d.ledger.programs.demand_blocks) == (False, 120)
    assert sums(d.ledger) == sums(recounted(d.ledger))


def test_a_parent_that_waits_is_not_kept_warm() -> None:
    d = Driver(PRESETS["mars"])
    d.ledger.estimates.eviction_delay.add(seconds(3))
    d.pool()
    d.submit("parent")
    d.finish("parent", prompt=100, tool="task", calls=1)
    assert of(cmd.Retain, d.tick()) != []
    d.start_tool("parent")
    assert of(cmd.Release, d.tick()) == []
    begin_child(d)
    (released,) = of(cmd.Release, d.tick())
    assert (released.program_id, "child" in released.reason) == ("parent", True)
    d.submit("parent", "aside")
    d.finish("parent", "aside", prompt=20, tool="bash", calls=1)
    assert of(cmd.Retain, d.tick()) == [], "a turn beside it changes nothing"
    d.send(d.tools(ev.ProgramEnded, program_id="child"))
    assert of(cmd.Retain, d.tick()) == []
    d.end_tool("parent")
    d.submit("parent", "parent.2")
    d.finish("parent", "parent.2", prompt=110, tool="bash", calls=1)
    assert [retain.program_id for retain in of(cmd.Retain, d.tick())] == ["parent"], "as ever once it is back"
