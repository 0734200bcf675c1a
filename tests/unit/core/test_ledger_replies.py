"""What a reply that somebody read means for its program."""

from typing import Any

import pytest
from support.core_driver import Driver, Publisher, fixed, of

from controlplane.core.ledger import turns
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Status, seconds


def read(d: Driver, name: str, turn: str = "", tool: str = "", calls: int | None = None) -> None:
    count = calls if calls is not None else int(bool(tool))
    d.send(d.gate(ev.ReplyRead, program_id=name, turn_id=turn or f"{name}.1", tool=tool, tool_calls=count))


@pytest.mark.parametrize("early", [True, False])
def test_a_program_ends_with_the_turn_that_its_client_called_the_last(early: bool) -> None:
    d = Driver()
    d.run_turn("a")
    d.submit("a", "a.2")
    last = d.gate(ev.ReplyRead, program_id="a", turn_id="a.2", is_last=True)
    if early:
        d.send(last)
        assert d.program("a").status is Status.ACTIVE, "its end is on the way"
        d.finish("a", "a.2")
    else:
        d.finish("a", "a.2")
        d.send(last)
    assert d.program("a").status is Status.ENDED
    assert d.ledger.estimates.lives.classes[""].turns.ends == [0.0, 0.0, 1.0], "all of its turns were counted"
    d.wait(6)  # an engine's late event would not be believed
    d.submit("a", "a.3")
    assert d.program("a").status is Status.ACTIVE, "it goes on all the same"
    assert sum(d.ledger.estimates.lives.classes[""].turns.ends) == 0


@pytest.mark.parametrize(("said", "freed"), [({"frees": True}, ["a", "child"]), ({}, [])])
@pytest.mark.parametrize("paused", [False, True])
def test_what_a_client_ends_is_freed_at_once_and_what_its_agent_ends_is_not(
    said: dict[str, bool], freed: list[str], paused: bool
) -> None:
    """Who talks to an agent may go on with it; and once."""
    d = Driver()
    d.send(d.gate(ev.ProgramArrived, program_id="child", parent_id="a"))
    for name in ("a", "child"):
        d.run_turn(name)
    d.wait(60)
    if paused:
        d.controller.replay_command(cmd.Pause(command_id=1000, program_id="a"), d.now_ns)
    d.tick()
    d.send(d.gate(ev.ProgramEnded, program_id="a", **said))
    assert sorted(each.program_id for each in of(cmd.Discard, d.tick())) == freed
    assert of(cmd.Discard, d.tick(1)) == []
    d.run_turn("a", "a.2")
    d.tick(1)
    d.send(d.gate(ev.ProgramEnded, program_id="a"))
    assert of(cmd.Discard, d.tick()) == [], "that was said of another run"


def test_who_came_back_at_once_keeps_what_it_has() -> None:
    d = Driver()
    d.run_turn("a")
    d.tick()
    d.send(d.gate(ev.ProgramEnded, program_id="a", frees=True))
    d.wait(6)
    d.submit("a", "a.2")
    assert of(cmd.Discard, d.tick()) == []


@pytest.mark.parametrize("early", [True, False])
def test_a_last_turn_that_failed_ends_its_program_too(early: bool) -> None:
    d = Driver()
    d.run_turn("a")
    d.submit("a", "a.2")
    events = [
        d.gate(ev.ReplyRead, program_id="a", turn_id="a.2", is_last=True),
        d.engine(ev.TurnEnded, program_id="a", turn_id="a.2", ok=False),
    ]
    for event in events if early else reversed(events):
        d.send(event)
    assert (d.program("a").status, d.ledger.turns.replies.keys() & {"a.2"} if early else set()) == (
        Status.ENDED,
        set(),
    )


def test_a_first_turn_that_the_engine_refuses_gives_its_slot_back_at_once() -> None:
    d = Driver(fixed(1))
    d.ask("a")
    d.ask("b")
    assert d.admitted() == ["a"]
    d.send(d.gate(ev.TurnAbandoned, program_id="a", turn_id="a.1", reason="the engine's server answered 400"))
    commands = d.tick()
    assert [command.program_id for command in of(cmd.Pause, commands)] == ["a"]
    assert [command.program_id for command in of(cmd.Admit, commands)] == ["b"]
    d.ask("a", "a.2")
    d.end("b")
    assert d.admitted() == ["a"], "it may come again"
    d.run_turn("a", "a.2")
    assert (d.tick(), d.program("a").status) == ([], Status.ACTIVE)


def test_a_refused_turn_beside_another_takes_no_slot_and_a_later_one_is_a_gap_like_others() -> None:
    d = Driver(fixed(1))
    d.submit("a")
    refused = d.gate(ev.TurnAbandoned, program_id="a", turn_id="a.2")
    d.send(refused)
    assert of(cmd.Pause, d.tick()) == []
    d.send(d.engine(ev.TurnEnded, program_id="a", turn_id="a.1", ok=False))
    assert len(of(cmd.Pause, d.tick())) == 1, "none of its turns ever ran"
    d.run_turn("a", "a.3")
    d.ask("a", "a.4")
    d.tick()
    assert d.program("a").gap_since_ns == 0
    d.send(d.gate(ev.TurnAbandoned, program_id="a", turn_id="a.4"))
    d.tick(11)
    assert (d.program("a").status, d.program("a").gap_since_ns > 0) == (Status.ACTIVE, True)


def test_a_last_turn_beside_another_one_ends_nothing() -> None:
    d = Driver()
    d.submit("a")
    d.submit("a", "a.2")
    d.send(d.gate(ev.ReplyRead, program_id="a", turn_id="a.1", is_last=True))
    d.finish("a")
    assert d.program("a").status is Status.ACTIVE


def test_a_reply_that_is_read_too_late_says_nothing() -> None:
    d = Driver()
    d.run_turn("a")
    d.submit("a", "a.2")
    read(d, "a", "a.1", tool="pytest")
    assert d.program("a").tool == ""
    read(d, "stranger", tool="pytest")
    d.finish("a", "a.2")
    d.end("a")
    read(d, "a", "a.2", tool="pytest")
    assert d.counts.late == 3


def test_a_turn_that_dies_with_its_engine_does_not_keep_its_program() -> None:
    """The client asked again, and the second answer came while the first turn was believed to run."""
    d = Driver()
    d.submit("a", "a.1")
    d.engine = Publisher("node/engine/2")
    d.submit("a", "a.2")
    d.finish("a", "a.2")
    read(d, "a", "a.2", calls=0)
    assert (d.program("a").open_turns, d.program("a").may_end) == (1, False)
    d.tick(6)  # the first engine's silence beside the second is its end
    assert (d.program("a").open_turns, d.program("a").may_end) == (0, True)
    d.tick(6)
    assert d.program("a").status is Status.ENDED


LATE_TOOLS = [(5.0, False, False), (8.9, False, True), (9.5, False, True), (6.9, True, False), (9.5, True, True)]


@pytest.mark.parametrize(("began_s", "turn_is_open", "of_this_gap"), LATE_TOOLS)
def test_a_tool_that_is_told_behind_a_turn_that_it_came_before_says_nothing_of_the_gap(
    began_s: float, turn_is_open: bool, of_this_gap: bool
) -> None:
    """Both were cut off, and each tells all of it at once; the agents' clock is 100 s ahead of the engine's."""
    d = Driver()
    began_ns = d.now_ns

    def told(make: Any, kind: Any, at_s: float, ahead_s: float, **fields: Any) -> None:
        d.now_ns = max(d.now_ns, began_ns + seconds(at_s))
        d.send(make(kind, program_id="a", at_ns=seconds(1 + ahead_s + at_s), **fields))

    def tool_told() -> None:
        told(d.tools, ev.ToolStarted, began_s, 100, call_id="c2", tool="bash")
        told(d.tools, ev.ToolEnded, began_s + 0.1, 100, call_id="c2", tool="bash", duration_ns=seconds(0.1))

    told(d.engine, ev.TurnSubmitted, 1, 0, turn_id="a.1", projected_blocks=1)
    told(d.engine, ev.TurnEnded, 2, 0, turn_id="a.1", prompt_tokens=10)
    told(d.tools, ev.ToolStarted, 2, 100, call_id="c1", tool="bash")
    told(d.tools, ev.ToolEnded, 3, 100, call_id="c1", tool="bash", duration_ns=seconds(1))
    d.now_ns = began_ns + seconds(10)
    told(d.engine, ev.TurnSubmitted, 7, 0, turn_id="a.2", projected_blocks=1)
    if turn_is_open:
        tool_told()
    told(d.engine, ev.TurnEnded, 9, 0, turn_id="a.2", prompt_tokens=10)
    if not turn_is_open:
        tool_told()
    read(d, "a", "a.2", calls=0)
    program = d.program("a")
    assert (program.may_end, program.gap_has_tool, program.open_tools) == (not of_this_gap, of_this_gap, 0)


def test_replies_of_turns_whose_end_is_lost_are_forgotten(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(turns, "_MOST_REPLIES", 2)
    d = Driver()
    for turn in ("1", "2", "3"):
        d.submit("a", turn)
        read(d, "a", turn, tool=turn)
    assert list(d.ledger.turns.replies) == ["2", "3"]
