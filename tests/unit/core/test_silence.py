"""What silence means."""

from dataclasses import replace

import pytest
from support.core_driver import Driver, fixed, of, recounted, sums

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core import silence
from controlplane.core.errors import ConfigError
from controlplane.core.lifecycle import Trigger
from controlplane.core.presets import PRESETS
from controlplane.core.retention.opportunistic import Opportunistic
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


def rests(d: Driver, name: str, gap_s: float, times: int) -> None:
    for number in range(times):
        d.run_turn(name, f"{name}.{number}")
        d.wait(gap_s)


def test_a_silent_client_keeps_its_slot_through_its_tools() -> None:
    """It reports no tools; the gaps that were seen are all that is known of them."""
    d = Driver()
    rests(d, "before", 12, 20)
    d.run_turn("a")
    assert [paused(d, 1) for _ in range(11)] == [[]] * 11
    assert d.ledger.estimates.chance_of_return(d.program("a"), d.now_ns) > 0.9
    assert paused(d, 1) == []
    assert d.program("a").status is Status.ACTIVE


def test_a_tool_that_was_reported_was_no_silence() -> None:
    """It ran for far longer than all gaps that were seen; its program has its next turn after it."""
    d = Driver()
    rests(d, "before", 2, 260)
    d.run_turn("a")
    d.start_tool("a")
    d.wait(400)
    d.end_tool("a", duration_s=400)
    assert "a" not in paused(d, 1)
    assert d.program("a").status is Status.ACTIVE
    assert "a" in paused(d, 40_000), "from the tool's end on it is silent"


def test_a_silence_that_outlasts_all_gaps_is_the_end_and_is_learned_from() -> None:
    d = Driver()
    rests(d, "a", 12, 20)
    d.run_turn("a", "last")
    (command,) = of(cmd.Pause, d.tick(400))
    assert command.reason.startswith("ended: silent for 400s: ")
    assert d.program("a").status is Status.ENDED
    estimates = d.ledger.estimates
    assert (estimates.turns.programs, estimates.lives.classes[""].turns.ends[21]) == (1, 1.0)


def test_who_was_wrongly_taken_to_have_ended_queues_and_is_learned_from_no_more() -> None:
    d = Driver()
    rests(d, "a", 12, 20)
    d.run_turn("a", "last")
    arrived_at_ns = d.program("a").arrived_at_ns
    assert paused(d, 400) == ["a"]
    d.wait(20)
    d.ask("a", "again")
    assert sum(d.ledger.estimates.lives.classes[""].turns.ends) == 0
    assert d.ledger.estimates.gaps_ns("")[-1] == seconds(420), "so long may a gap last"
    assert d.program("a").arrived_at_ns == arrived_at_ns
    assert d.admitted() == ["a"]


def test_a_pause_frees_slot_and_charge_and_keeps_the_arrival() -> None:
    d = Driver(fixed(1))
    d.run_turn("a", prompt=100)
    arrived_at_ns = d.program("a").arrived_at_ns
    d.ask("b")
    d.ledger.programs.move(d.program("a"), Trigger.PAUSE, d.now_ns)
    assert d.admitted() == ["b"]
    d.submit("b")
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
    assert paused(d, 5) == []
    assert d.program("a").status is Status.ACTIVE


def test_a_granted_program_that_never_comes_gives_its_slot_back() -> None:
    """A grant's way to the gate and the turn's to the engine: no gap of the program's, whatever those last."""
    d = Driver(fixed(1))
    d.ask("a")
    d.ask("b")
    assert d.admitted() == ["a"]
    assert d.admitted(after_s=1) == ["b"]  # the safety valve
    assert paused(d, 8) == []
    assert paused(d, 1) == ["a"]
    assert d.program("a").status is Status.PAUSED


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
    assert d.ledger.programs.by_name == {}


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
    d.ledger.programs.move(d.program("a"), Trigger.PAUSE, d.now_ns)
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
    assert paused(d, 1) == [], "its next turn is about to come"
    d.run_turn("child", "child.2", calls=0)
    assert "root" in paused(d, 11)


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


# Lending


def test_who_will_be_away_for_long_lends_its_room_and_takes_it_back() -> None:
    """A context of 400 blocks takes 8 s to compute again, which would hold up a turn of 500."""
    d = Driver(PRESETS["mars"])
    d.pool(total=2000)
    d.submit("busy", blocks=500)
    d.run_turn("a", prompt=400)
    d.ledger.estimates.prefill.add(1000, 0, seconds(20))
    d.tick(1)
    assert (d.program("a").lends, d.ledger.programs.demand_blocks) == (False, 900)
    assert d.program("a").keep_ratio > 1, "one gap in four is supposed to end in a second and a half"
    d.tick(60)
    assert 0 < d.program("a").keep_ratio < 1, "but not one that has lasted a minute"
    assert (d.program("a").lends, d.ledger.programs.demand_blocks) == (True, 500)
    d.ask("a", "a.2")
    assert (d.program("a").lends, d.program("a").keep_ratio, d.ledger.programs.demand_blocks) == (False, -1.0, 900)
    assert sums(d.ledger) == sums(recounted(d.ledger))


def test_where_retention_does_not_lend_a_slot_is_kept_with_its_room() -> None:
    d = Driver(replace(PRESETS["mars"], retention=Opportunistic(lend=False)))
    d.pool(total=2000)
    d.run_turn("a", prompt=400)
    assert paused(d, 60) == []
    assert (d.program("a").lends, d.ledger.programs.demand_blocks) == (False, 400)


def test_a_child_holds_no_slot_and_lends_none() -> None:
    d = Driver(PRESETS["mars"])
    d.submit("root")
    d.ask("child", parent="root")
    d.tick()
    d.run_turn("child")
    d.tick(60)
    assert (d.program("child").lends, d.program("child").keep_ratio) == (False, -1.0)


def test_very_many_silent_programs_are_weighed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "_MOST_WEIGHED", 2)
    d = Driver(PRESETS["mars"])
    names = ("a", "b", "c", "d")
    for name in names:
        d.run_turn(name)

    def weighed() -> list[str]:
        return [name for name in names if d.program(name).keep_ratio >= 0]

    d.tick(1)
    assert weighed() == ["a", "b"]
    d.tick(1)
    assert weighed() == ["a", "b", "c", "d"], "those whose turn was later"


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
    assert (d.program("a").open_turns, d.ledger.publishers.sequences) == (0, {})


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
    assert d.ledger.turns.running == {}
    d.finish("a")
    assert (d.counts.contradictions, d.counts.late) == (0, 1)
    assert asked(d, 0) == ["node/engine/1"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("end_after_reply_s", 0),
        ("end_below", -0.1),
        ("end_below", 1.1),
        ("unused_slot_s", 0),
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
    d.wait(5)  # without a tick; the events of its last turns have come by then
    d.controller.receive(ev.TurnSubmitted(program_id="a", turn_id="again", projected_blocks=1), d.now_ns)
    assert [c for c in d.controller.tick(d.now_ns) if isinstance(c, cmd.Pause)] == []
    assert d.program("a").status is Status.ACTIVE


def test_a_title_reply_beside_the_turn_that_matters_ends_nothing() -> None:
    d = Driver()
    for turn in ("main", "title"):
        d.controller.receive(ev.TurnSubmitted(program_id="a", turn_id=turn, projected_blocks=1), d.now_ns)
    d.controller.receive(ev.TurnEnded(program_id="a", turn_id="title", tool_calls=0), d.now_ns)
    assert not d.program("a").may_end
