"""What silence means."""

import pytest
from support.core_driver import Driver, fixed, of

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.errors import ConfigError
from controlplane.core.silence import SilenceRules
from controlplane.core.types import Status, seconds


def paused(d: Driver, after_s: float) -> list[str]:
    return [command.program_id for command in of(cmd.Pause, d.tick(after_s))]


def test_a_reply_without_a_tool_call_ends_its_program_after_five_seconds() -> None:
    d = Driver()
    d.run_turn("a", calls=0)
    assert paused(d, 4.9) == []
    commands = d.tick(1.1)
    assert [(type(c), c.program_id) for c in commands if isinstance(c, cmd.ProgramCommand)] == [
        (cmd.Pause, "a"),
    ]
    assert d.program("a").status is Status.ENDED
    assert d.ledger.estimates.turns.programs == 1


@pytest.mark.parametrize("calls", [-1, 1])
def test_any_other_reply_keeps_its_slot_for_ten_seconds(calls: int) -> None:
    d = Driver()
    d.run_turn("a", calls=calls)
    assert paused(d, 9.9) == []
    assert paused(d, 1.1) == ["a"]
    assert d.program("a").status is Status.PAUSED


def test_a_pause_frees_slot_and_charge_and_keeps_the_arrival() -> None:
    d = Driver(fixed(1))
    d.run_turn("a", prompt=100)
    arrived_at_ns = d.program("a").arrived_at_ns
    d.ask("b")
    assert "b" in [c.program_id for c in of(cmd.Admit, d.tick(11))]
    assert d.program("a").kv_blocks == 100
    d.ask("a", "a.2")
    assert d.program("a").arrived_at_ns == arrived_at_ns
    assert d.admitted() == []
    d.end("b")
    assert d.admitted() == ["a"]


def test_an_open_turn_or_tool_is_not_silence() -> None:
    d = Driver()
    d.submit("a")
    d.run_turn("b")
    d.start_tool("b")
    assert paused(d, 800) == []
    assert paused(d, 800) == []


def test_a_tool_that_starts_after_the_reply_means_it_goes_on() -> None:
    d = Driver()
    d.run_turn("a", calls=0)
    d.start_tool("a")
    d.end_tool("a")
    assert paused(d, 6) == []
    assert paused(d, 5) == ["a"]
    assert d.program("a").status is Status.PAUSED


def test_patience_grows_with_the_longest_gap() -> None:
    d = Driver()
    d.run_turn("a")
    d.wait(6)
    d.run_turn("a", "a.2")
    assert paused(d, 17) == []
    assert paused(d, 1.1) == ["a"]


def test_a_granted_program_that_never_comes_gives_its_slot_back() -> None:
    d = Driver(fixed(1))
    d.ask("a")
    d.ask("b")
    assert d.admitted() == ["a"]
    assert d.admitted(after_s=5) == ["b"]  # the safety valve
    assert paused(d, 5.1) == ["a"]


def test_long_silence_ends_a_program() -> None:
    d = Driver()
    d.run_turn("a")
    d.send(d.tools(ev.ProgramArrived, program_id="only arrived"))
    d.tick(11)
    d.tick(880)
    assert d.program("a").status is Status.PAUSED
    d.tick(11)
    assert d.program("a").status is Status.ENDED
    assert d.program("only arrived").status is Status.ENDED
    d.tick(61)
    assert d.ledger.programs == {}


def test_a_child_that_waits_with_its_root_is_not_silent() -> None:
    d = Driver(fixed(1))
    d.submit("holder")
    d.ask("child", parent="root")
    d.tick(2000)
    assert d.program("child").status is Status.WAITING
    d.end("holder")
    assert d.admitted() == ["root", "child"]


def test_a_paused_programs_tool_keeps_it_alive() -> None:
    d = Driver()
    d.run_turn("a")
    d.tick(11)
    d.start_tool("a")
    d.tick(2000)
    assert d.program("a").status is Status.PAUSED


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
    assert "root" in paused(d, 1)


def test_an_idle_child_is_not_paused_by_itself() -> None:
    d = Driver()
    d.submit("root")
    d.ask("child", parent="root")
    d.tick()
    d.run_turn("child")
    assert paused(d, 100) == []


def test_a_child_whose_reply_called_no_tool_has_ended() -> None:
    d = Driver()
    d.submit("root")
    d.ask("child", parent="root")
    d.tick()
    d.run_turn("child", calls=0)
    assert paused(d, 6) == ["child"]
    assert (d.program("child").status, d.program("root").status) == (Status.ENDED, Status.ACTIVE)


# Publishers


def asked(d: Driver, after_s: float) -> list[str]:
    return [command.publisher for command in of(cmd.StateRequest, d.tick(after_s))]


def test_a_silent_publisher_with_work_is_asked_and_then_forgotten() -> None:
    d = Driver()
    d.submit("a")
    assert asked(d, 59) == []
    assert asked(d, 1) == ["node/engine/1"]
    assert asked(d, 9) == []
    assert asked(d, 1) == ["node/engine/1"]
    assert asked(d, 10) == ["node/engine/1"]
    assert d.program("a").open_turns == 1
    assert asked(d, 10) == []
    assert (d.program("a").open_turns, d.ledger.state.sequences) == (0, {})


def test_a_publisher_that_answers_is_kept() -> None:
    d = Driver()
    d.submit("a")
    asked(d, 60)
    d.pool()
    assert asked(d, 59) == []
    assert asked(d, 1) == ["node/engine/1"]


def test_a_silent_publisher_without_work_is_left_alone() -> None:
    d = Driver()
    d.run_turn("a")
    d.cpus(4)
    assert [asked(d, 100) for _ in range(5)] == [[]] * 5


def test_every_kind_of_work_counts() -> None:
    d = Driver(fixed(1))
    d.submit("x")
    d.ask("a")
    d.start_tool("a")
    assert asked(d, 60) == ["node/engine/1", "node/gate/1", "node/tool/1"]


def test_a_forgotten_publisher_that_speaks_again_is_asked_for_its_state() -> None:
    d = Driver()
    d.submit("a")
    for _ in range(4):
        d.tick(60)
    assert d.ledger.state.running == {}
    d.finish("a")
    assert (d.counts.contradictions, d.counts.late) == (0, 1)
    assert asked(d, 0) == ["node/engine/1"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("end_after_reply_s", 0),
        ("pause_after_s", 0),
        ("pause_after_longest_gaps", -1),
        ("end_after_s", 90_000),
        ("ask_publisher_after_s", float("nan")),
        ("ask_publisher_every_s", 0),
        ("ask_publisher_times", 0),
    ],
)
def test_rules_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError) as error:
        SilenceRules(**{field: value})  # type: ignore[arg-type]
    assert error.value.field == field


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
    d.controller.receive(ev.TurnSubmitted(program_id="a", turn_id="again", projected_blocks=1), d.now_ns)
    assert [c for c in d.controller.tick(d.now_ns) if isinstance(c, cmd.Pause)] == []
    assert d.program("a").status is Status.ACTIVE


def test_a_title_reply_beside_the_turn_that_matters_ends_nothing() -> None:
    d = Driver()
    for turn in ("main", "title"):
        d.controller.receive(ev.TurnSubmitted(program_id="a", turn_id=turn, projected_blocks=1), d.now_ns)
    d.controller.receive(ev.TurnEnded(program_id="a", turn_id="title", tool_calls=0), d.now_ns)
    assert not d.program("a").may_end
