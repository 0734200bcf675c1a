"""A tool that waits for a child program: a sub-agent's run, told by the agent's hooks."""

from support.core_driver import Driver, of, recounted, sums

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.presets import PRESETS
from controlplane.core.types import seconds


def counts(d: Driver) -> tuple[int, int]:
    return d.ledger.tools.active, d.ledger.tools.waiting


def begin_child(d: Driver) -> None:
    d.send(d.tools(ev.ProgramArrived, program_id="child", parent_id="parent"))


def test_a_tool_that_waits_for_a_child_is_no_load_and_teaches_no_duration() -> None:
    d = Driver()
    d.run_turn("parent")
    d.start_tool("parent")
    assert counts(d) == (1, 0)
    begin_child(d)
    assert (counts(d), d.program("parent").delegating, d.program("parent").open_tools) == ((0, 0), 1, 1)
    assert sums(d.ledger) == sums(recounted(d.ledger))
    assert of(cmd.Release, d.tick()) == [], "nothing was pinned"
    d.start_tool("child")
    assert counts(d) == (1, 0)
    d.end_tool("child")
    d.send(d.tools(ev.ProgramEnded, program_id="child"))
    d.wait(30)
    d.end_tool("parent")
    assert (counts(d), d.program("parent").delegating) == ((0, 0), 0)
    assert d.program("parent").idle_since_ns == d.now_ns
    assert len(d.ledger.estimates.tools["bash"].all.ascending) == 1, "the child's only"
    d.submit("parent", "parent.2")
    assert d.ledger.estimates.gaps_ns("") == [], "a gap that lasts as long as the child does is no tool's"


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


def test_calls_that_have_not_begun_or_begin_later_are_tools_as_ever() -> None:
    d = Driver()
    d.run_turn("parent")
    d.start_tool("parent", "task")
    d.send(d.tools(ev.ToolEnqueued, program_id="parent", call_id="next", tool="bash"))
    begin_child(d)
    assert counts(d) == (0, 1)
    d.start_tool("parent", "next")
    assert (counts(d), d.program("parent").delegating) == ((1, 0), 1)
    begin_child(d)
    assert (counts(d), d.program("parent").delegating) == ((0, 0), 2), "run again: whatever runs now may be it"


def test_a_child_that_the_gate_alone_tells_of_is_waited_for_by_nobody() -> None:
    """A request for a title comes while a tool runs; it names the conversation as its parent."""
    d = Driver()
    d.run_turn("parent")
    d.start_tool("parent")
    d.ask("parent/title", parent="parent")
    assert (counts(d), d.program("parent").delegating) == ((1, 0), 0)


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
