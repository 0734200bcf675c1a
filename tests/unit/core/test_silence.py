"""What silence means."""

import pytest
from support.core_driver import Driver, fixed, of, recounted

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.lifecycle import Trigger
from controlplane.core.model.types import Status, seconds


def paused(d: Driver, after_s: float) -> list[str]:
    return [command.program_id for command in of(cmd.Pause, d.tick(after_s))]


@pytest.mark.parametrize("calls", [-1, 1])
def test_any_other_reply_keeps_its_slot_while_it_may_come_back(calls: int) -> None:
    """Nothing was seen: it comes back ten times in eleven, and half of the gaps last for more than 10 s."""
    d = Driver()
    d.run_turn("a", calls=calls)
    assert paused(d, 3200) == [], "10 of 3,210 last so long: 3.02% of such come back"
    assert paused(d, 40) == ["a"]
    assert d.program("a").status is Status.ENDED


def test_a_reply_that_calls_a_tool_is_waited_for_ten_times_as_long() -> None:
    d = Driver()
    d.run_turn("a", calls=1, tool="bash")
    assert paused(d, 31_000) == []
    assert paused(d, 2_000) == ["a"]


def test_long_silence_ends_a_program_without_a_slot() -> None:
    d = Driver()
    d.run_turn("a")
    d.ledger.programs.move(d.program("a"), Trigger.PAUSE, d.now_ns)
    d.send(d.tools(ev.ProgramArrived, program_id="only arrived"))
    d.tick(11)
    d.tick(880)
    assert d.program("a").status is Status.PAUSED
    d.tick(11)
    assert d.program("a").status is Status.ENDED
    assert d.program("only arrived").status is Status.ENDED
    d.tick(61)
    assert list(d.ledger.programs.by_name) == ["a"], "it may come back yet, and would prove that wrong"
    d.tick(3600)
    assert d.ledger.programs.by_name == {}


def test_who_was_taken_for_ended_and_comes_back_is_learned_from_at_once() -> None:
    d = Driver()
    for name in "abc":
        d.run_turn(name)
    assert paused(d, 3240) == ["a", "b", "c"]
    gaps = d.ledger.estimates.gaps
    assert (gaps.doubt, len(gaps.of(""))) == (0, 0)
    d.tick(1800)
    d.send(d.tools(ev.ProgramEnded, program_id="b"))
    d.ask("a", "a.2")
    assert gaps.doubt == 0.5
    assert gaps.of("")[0] >= seconds(3240 + 1800), "it is the program that it was, and this was a gap of it"
    d.ask("b", "b.2")
    assert gaps.doubt == 0.5, "its agent had said that it was over"


def test_a_child_that_waits_with_its_root_is_not_silent() -> None:
    d = Driver(fixed(1))
    d.submit("holder")
    d.ask("child", parent="root")
    d.tick(2000)
    assert d.program("child").status is Status.WAITING
    d.end("holder")
    assert d.admitted() == ["root", "child"]


def test_a_busy_child_keeps_its_roots_slot() -> None:
    d = Driver()
    d.run_turn("root", calls=0)
    d.ask("child", parent="root")
    d.tick()
    d.submit("child")
    assert paused(d, 100) == []
    d.finish("child")
    d.start_tool("child")
    assert paused(d, 100) == []
    d.end_tool("child")
    assert paused(d, 1) == [], "its next turn is about to come"
    d.run_turn("child", "child.2", calls=0)
    assert "root" in paused(d, 11)


# Publishers


def asked(d: Driver, after_s: float) -> list[str]:
    return [command.publisher for command in of(cmd.StateRequest, d.tick(after_s))]


def test_a_silent_publisher_without_work_is_left_alone() -> None:
    d = Driver()
    d.run_turn("a")
    d.cpus(4)
    assert [asked(d, 100) for _ in range(5)] == [[]] * 5


def test_a_forgotten_publisher_that_speaks_again_is_asked_for_its_state() -> None:
    d = Driver()
    d.submit("a")
    for _ in range(4):
        d.tick(60)
    assert d.ledger.turns.running == {}
    d.finish("a")
    assert (d.counts.contradictions, d.counts.late) == (0, 1)
    assert asked(d, 0) == ["node/engine/1"]


def test_the_end_of_a_run_is_told_to_gate_and_engine() -> None:
    d = Driver()
    d.run_turn("a", calls=1)
    d.controller.receive(ev.ToolStarted(program_id="a", call_id="1", tool="bash"), d.now_ns)
    d.program("a").retained_until_ns = d.now_ns + seconds(60)
    d.controller.receive(ev.ProgramEnded(program_id="a", reason="done"), d.now_ns)
    commands = d.controller.tick(d.now_ns)
    assert [(type(c), c.program_id) for c in commands if isinstance(c, cmd.ProgramCommand)] == [
        (cmd.Pause, "a"),
        (cmd.Release, "a"),
    ]
    assert "done" in commands[0].reason


def test_a_program_that_comes_back_before_it_was_told_keeps_its_slot() -> None:
    d = Driver()
    d.run_turn("a", calls=1)
    d.controller.receive(ev.ProgramEnded(program_id="a"), d.now_ns)
    d.wait(5)  # without a tick; the events of its last turns have come by then
    d.controller.receive(ev.TurnSubmitted(program_id="a", turn_id="again", projected_blocks=1), d.now_ns)
    assert [c for c in d.controller.tick(d.now_ns) if isinstance(c, cmd.Pause)] == []
    assert d.program("a").status is Status.ACTIVE


def test_who_is_looked_at_first_is_after_a_restart() -> None:
    """Records are in the order in which programs were first told of; slots were given in another."""
    d = Driver(fixed(2))
    for name in ("a", "b"):
        d.run_turn(name)
    d.end("a")
    d.ask("a", "again")
    d.tick()
    programs, again = d.ledger.programs, recounted(d.ledger).programs
    assert list(programs.by_name) == ["a", "b"]
    assert list(again.active) == list(programs.active) == ["b", "a"]
