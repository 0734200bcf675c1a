"""What turns do to the ledger: charges, gaps, estimates; late, lost, duplicate and contradictory events."""

import pytest
from support.core_driver import Driver, Publisher, fixed, of, recounted

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.errors import RemoteEventError
from controlplane.core.ledger import Ledger
from controlplane.core.lifecycle import Trigger
from controlplane.core.lives import Faded
from controlplane.core.steps import run
from controlplane.core.types import Status, Tier, seconds


def test_a_turn_from_the_gate_to_the_end() -> None:
    d = Driver()
    d.pool(block_tokens=16)
    d.ask("a", tokens=160)
    assert (d.program("a").status, d.program("a").queued_turns, d.program("a").queued_blocks) == ("waiting", 1, 10)
    assert list(d.ledger.programs.queue) == ["a"]
    assert d.admitted() == ["a"]
    assert (d.program("a").status, d.program("a").queued_turns) == (Status.ACTIVE, 0)
    d.submit("a", blocks=12)
    assert (d.program("a").open_turns, d.program("a").kv_blocks, d.program("a").idle_since_ns) == (1, 12, 0)
    d.wait(3)
    d.finish("a", prompt=200, output=50)
    program = d.program("a")
    assert (program.open_turns, program.turn_index, program.context_tokens) == (0, 1, 250)
    assert (program.kv_blocks, program.kv_tier, program.idle_since_ns) == (16, Tier.HBM, d.now_ns)
    assert d.ledger.estimates.output_tokens == 50


def test_a_grant_is_charged_with_its_estimate_until_the_engine_reports() -> None:
    d = Driver()
    d.pool()
    d.ask("a", tokens=300)
    d.tick()
    assert d.ledger.programs.demand_blocks == 300
    d.submit("a", blocks=280)
    assert d.ledger.programs.demand_blocks == 280


def test_a_known_context_is_not_charged_less_for_a_small_estimate() -> None:
    d = Driver()
    d.pool()
    d.run_turn("a", prompt=500)
    d.wait(20)
    d.ledger.programs.move(d.program("a"), Trigger.PAUSE, d.now_ns)
    assert d.ledger.programs.demand_blocks == 0
    d.ask("a", "a.2", tokens=5)
    d.tick()
    assert d.ledger.programs.demand_blocks == 500


def test_a_failed_turn_teaches_nothing() -> None:
    d = Driver()
    d.submit("a")
    d.send(d.engine(ev.TurnEnded, program_id="a", turn_id="a.1", prompt_tokens=9, output_tokens=9, ok=False))
    program = d.program("a")
    assert (program.turn_index, program.context_tokens, program.open_turns) == (0, 0, 0)
    assert d.ledger.estimates.output.count == 0


def test_shared_prefixes_are_counted_once() -> None:
    """A charge leaves out what was known to be shared when it was made."""
    d = Driver()
    d.pool()
    for name in "abc":
        d.submit(name, blocks=100)
        d.send(d.engine(ev.FirstToken, program_id=name, turn_id=f"{name}.1", prompt_tokens=100, cached_tokens=40))
    for name in "abc":
        d.finish(name, prompt=100)
    assert (d.ledger.programs.charges.demand_blocks, d.program("a").shared_blocks) == (3 * 60, 40)
    assert d.ledger.programs.demand_blocks == 3 * 60 + 40


def test_no_more_of_a_context_is_shared_than_there_is() -> None:
    d = Driver()
    d.ledger.estimates.shared_tokens.add(40)
    for name in "abc":
        d.submit(name, blocks=1)
    assert (d.ledger.programs.charges.demand_blocks, d.program("a").shared_blocks) == (0, 1)
    assert d.ledger.programs.demand_blocks == 40, "what the engine holds for others still"


def test_what_was_held_before_the_size_of_a_block_was_known_is_counted_anew() -> None:
    d = Driver()
    d.ask("a", tokens=105)
    d.pool(block_tokens=10)
    assert (d.program("a").queued_blocks, d.ledger.programs.charges.queued_blocks) == (11, 11)


def test_a_turn_without_any_figure_is_estimated_at_one_block() -> None:
    d = Driver()
    d.ask("a", tokens=0)
    assert d.program("a").queued_blocks == 1


def test_a_retry_of_a_held_turn_keeps_its_place() -> None:
    d = Driver()
    d.ask("a")
    queued_at_ns = d.program("a").queued_at_ns
    d.wait(3)
    d.ask("a", tokens=99)
    assert (d.program("a").queued_at_ns, d.program("a").queued_turns) == (queued_at_ns, 1)


def test_an_abandoned_turn_leaves_the_queue() -> None:
    d = Driver()
    d.ask("a")
    d.send(d.gate(ev.TurnAbandoned, program_id="a", turn_id="a.1", reason="client gone"))
    assert (list(d.ledger.programs.queue), d.ledger.programs.charges.queued_blocks) == ([], 0)
    assert d.admitted() == []


def test_who_left_the_queue_and_asks_again_keeps_its_place() -> None:
    d = Driver(fixed(1))
    d.submit("holder")
    d.ask("a")
    since_ns = d.program("a").queued_at_ns
    d.send(d.gate(ev.TurnAbandoned, program_id="a", turn_id="a.1"))
    d.wait(3)
    d.ask("a", "a.again")
    assert d.program("a").queued_at_ns == since_ns
    d.end("holder")
    assert d.admitted() == ["a"]
    assert d.program("a").queued_at_ns == 0


def test_an_unknown_abandoned_turn_is_harmless() -> None:
    d = Driver()
    d.send(d.gate(ev.TurnAbandoned, program_id="a", turn_id="nothing"))
    assert d.counts.contradictions == 0


def test_a_turn_that_enters_unasked_takes_a_slot_and_is_counted() -> None:
    d = Driver()
    d.submit("a")
    assert (d.program("a").status, d.ledger.programs.charges.active_roots, d.counts.admitted_unasked) == (
        "active",
        1,
        1,
    )


def test_a_requeued_turn_is_not_counted_twice() -> None:
    d = Driver()
    d.submit("a")
    d.submit("a")
    assert d.program("a").open_turns == 1


def test_a_continuation_does_not_count_as_unasked() -> None:
    d = Driver()
    d.run_turn("a")
    d.submit("a", "a.2")
    assert d.counts.admitted_unasked == 1


def test_turns_may_overlap() -> None:
    d = Driver()
    d.submit("a", "main")
    d.submit("a", "title")
    d.finish("a", "title")
    assert (d.program("a").open_turns, d.program("a").idle_since_ns) == (1, 0)
    d.finish("a", "main")
    assert d.program("a").idle_since_ns == d.now_ns


# Figures


def first_token(d: Driver, name: str, turn: str, **figures: int) -> None:
    d.send(d.engine(ev.FirstToken, program_id=name, turn_id=turn, **figures))


def test_prefill_speed_is_learned_from_what_was_computed() -> None:
    d = Driver()
    d.submit("a")
    first_token(d, "a", "a.1", prompt_tokens=1000, cached_tokens=900, prefill_ns=200_000)
    assert d.ledger.estimates.prefill_ns(10) == 20_000
    first_token(d, "a", "a.1", prompt_tokens=1000, cached_tokens=990, prefill_ns=900_000)
    assert d.ledger.estimates.prefill_ns(10) == 20_000, "so few tokens measure the step's overhead"


def reply(d: Driver, name: str, turn: str, service_ns: int, **figures: int) -> None:
    d.submit(name, turn)
    first_token(d, name, turn, **{"prompt_tokens": 1000, "prefill_ns": 1_000_000} | figures)
    d.send(d.engine(ev.TurnEnded, program_id=name, turn_id=turn, output_tokens=101, service_ns=service_ns))


def test_what_turns_would_take_alone_is_learned_from_those_that_end() -> None:
    """1 us a token for a prefill, 10 us for one of a reply; then ten times as long beside another turn."""
    d = Driver()
    reply(d, "a", "a.1", 2_000_000)
    sharing = d.ledger.estimates.sharing
    assert (sharing.token_ns, sharing.alone_ns, sharing.service_ns) == (10_000.0, 2_000_000, 2_000_000)
    d.submit("b")
    reply(d, "a", "a.2", 20_000_000, prefill_ns=10_000_000, loaded_tokens=400)
    assert sharing.token_ns == 10_000.0, "it was not alone"
    assert sharing.alone_ns == pytest.approx(0.98 * 2_000_000 + 11_000_000), "loading is not computing"
    reply(d, "a", "a.3", 20_000_000, prefill_ns=10_000_000)
    assert d.ledger.estimates.alone_ratio < 0.5, "ten times as long beside another"


def test_a_turn_without_a_timed_prefill_teaches_nothing_of_sharing() -> None:
    d = Driver()
    reply(d, "a", "a.1", 2_000_000, prefill_ns=0)
    assert d.ledger.estimates.alone_ratio == 1.0
    assert d.ledger.estimates.sharing.service_ns == 0


def test_a_turn_whose_beginning_was_lost_teaches_nothing_of_sharing() -> None:
    d = Driver()
    d.run_turn("a")
    first_token(d, "a", "a.9", prompt_tokens=1000, prefill_ns=1_000_000)
    d.send(d.engine(ev.TurnEnded, program_id="a", turn_id="a.9", output_tokens=101, service_ns=2_000_000))
    assert d.ledger.estimates.sharing.service_ns == 0


def test_a_return_to_a_lost_context_teaches_its_delay() -> None:
    d = Driver()
    d.run_turn("a", prompt=1000)
    d.submit("a", "a.2")
    first_token(d, "a", "a.2", prompt_tokens=1100, cached_tokens=499, launch_delay_ns=7)
    assert d.ledger.estimates.eviction_delay_ns == 7
    assert d.ledger.turns.signals.cold_returns == 1


def test_a_warm_return_teaches_no_delay() -> None:
    d = Driver()
    d.run_turn("a", prompt=1000)
    d.submit("a", "a.2")
    first_token(d, "a", "a.2", prompt_tokens=1100, cached_tokens=500, launch_delay_ns=7)
    first_token(d, "a", "a.2", launch_delay_ns=9)
    assert (d.ledger.estimates.eviction_delay.count, d.ledger.turns.signals.cold_returns) == (0, 0)


def test_a_compacted_prompt_is_not_a_lost_context() -> None:
    d = Driver()
    d.run_turn("a", prompt=10_000)
    d.submit("a", "a.2")
    first_token(d, "a", "a.2", prompt_tokens=800, cached_tokens=600)
    assert d.ledger.estimates.eviction_delay.count == 0


def test_a_cold_return_after_a_pause_is_no_sign_of_thrashing() -> None:
    d = Driver()
    d.run_turn("a", prompt=1000)
    d.ledger.programs.move(d.program("a"), Trigger.PAUSE, d.now_ns)
    d.submit("a", "a.2")
    first_token(d, "a", "a.2", prompt_tokens=1100, launch_delay_ns=7)
    assert (d.ledger.estimates.eviction_delay_ns, d.ledger.turns.signals.cold_returns) == (7, 0)


def test_what_lay_below_the_device_teaches_what_loading_costs_and_nothing_of_computing() -> None:
    """1,100 tokens: 600 lay on the device and 400 below it, 100 are new; 1 us a token, and 100 us for the load."""
    d = Driver()
    d.submit("a")
    first_token(d, "a", "a.1", prompt_tokens=1000, prefill_ns=1_000_000)
    d.finish("a", "a.1", prompt=1000)
    d.submit("a", "a.2")
    figures = {"cached_tokens": 1000, "loaded_tokens": 400, "prefill_ns": 200_000}
    first_token(d, "a", "a.2", prompt_tokens=1100, **figures)
    estimates = d.ledger.estimates
    assert estimates.prefill_ns(1000) == 1_000_000
    assert estimates.load_ratio == pytest.approx(100_000 / 400_000)
    assert estimates.kept_ratio == pytest.approx(400 / (400 + d.program("a").context_tokens - 1000))


# Late, lost, duplicate, contradictory


def test_duplicates_change_nothing() -> None:
    d = Driver()
    event = d.engine(ev.TurnSubmitted, program_id="a", turn_id="a.1", projected_blocks=5)
    ended = d.engine(ev.TurnEnded, program_id="a", turn_id="a.1", prompt_tokens=5)
    d.send(event, event, ended, ended, event)
    assert (d.program("a").open_turns, d.program("a").turn_index) == (0, 1)
    assert (d.counts.duplicates, d.counts.applied, d.counts.contradictions) == (3, 2, 0)


def test_an_end_before_its_beginning_is_late_where_there_is_a_gap() -> None:
    d = Driver()
    begin = d.engine(ev.TurnSubmitted, program_id="a", turn_id="a.1", projected_blocks=5)
    end = d.engine(ev.TurnEnded, program_id="a", turn_id="a.1", prompt_tokens=5)
    d.send(end, begin)
    assert (d.counts.late, d.counts.contradictions, d.ledger.turns.running) == (1, 0, {})
    assert d.ledger.programs.by_name == {}, "an end makes nobody known, and its beginning came too late to"


def test_a_lost_beginning_does_not_leave_the_turn_in_the_queue() -> None:
    d = Driver()
    d.ask("a")
    d.engine.skip()
    d.finish("a")
    assert list(d.ledger.programs.queue) == []
    assert d.ledger.gates.held == {}


def test_an_end_that_never_began_is_a_contradiction() -> None:
    d = Driver()
    d.ask("a", "another")
    d.finish("a")
    d.finish("unknown")
    assert d.counts.contradictions == 2
    assert (d.program("a").quarantined, d.program("a").accused) == (True, "node/engine/1")
    assert d.program("a").turn_index == 0
    assert "unknown" not in d.ledger.programs.by_name
    assert [c.publisher for c in of(cmd.StateRequest, d.tick())] == ["node/engine/1"]


def test_an_end_under_another_name_is_a_contradiction() -> None:
    d = Driver()
    d.submit("a", "t")
    d.finish("b", "t")
    assert d.counts.contradictions == 1
    assert (d.program("a").open_turns, "b" in d.ledger.programs.by_name) == (1, False)


def test_an_unnumbered_end_without_a_beginning_is_late() -> None:
    ledger = Ledger()
    ledger.apply(ev.TurnEnded(program_id="a", turn_id="t"), 5)
    assert ledger.publishers.counts.late == 1


def test_the_ledger_raises_what_the_controller_counts() -> None:
    ledger = Ledger()
    with pytest.raises(RemoteEventError, match="ended and never began"):
        ledger.apply(ev.TurnEnded(publisher="p", sequence=1, program_id="a", turn_id="t"), 5)


def test_early_ends_are_bounded_and_forgotten() -> None:
    d = Driver()
    d.engine.skip()
    for number in range(5000):
        d.finish("a", f"t{number}")
    assert len(d.ledger.publishers.early_ends) == 4096
    d.tick(61)
    assert d.ledger.publishers.early_ends == {}


def test_a_quarantined_programs_output_is_not_learned() -> None:
    d = Driver()
    d.ask("a", "another")
    d.finish("a", "never")
    d.run_turn("a", output=500)
    d.end("a")
    estimates = d.ledger.estimates
    assert (estimates.output.count, estimates.turns.programs, estimates.lives.classes[""].first_tokens.count) == (
        0,
        0,
        0,
    )


# Programs that end


def test_an_ended_program_gives_its_slot_and_its_place_back() -> None:
    d = Driver()
    d.run_turn("a", prompt=100)
    d.ask("b")
    d.end("a")
    d.end("b")
    d.end("never seen")
    assert (
        d.ledger.programs.charges.active_roots,
        d.ledger.programs.demand_blocks,
        list(d.ledger.programs.queue),
    ) == (0, 0, [])
    assert (d.program("a").status, d.program("a").kv_tier) == (Status.ENDED, Tier.NONE)
    assert d.program("never seen").status is Status.ENDED
    assert d.ledger.estimates.turns.n == 1  # one turn of a; b never ran


def test_an_ended_program_may_come_back() -> None:
    d = Driver()
    d.run_turn("a", prompt=100)
    arrived_at_ns = d.program("a").arrived_at_ns
    d.end("a")
    d.wait(5)
    d.ask("a", "a.2")
    assert d.program("a").arrived_at_ns == arrived_at_ns
    assert d.admitted() == ["a"]
    d.end("a")
    d.wait(5)
    d.submit("a", "a.3")
    assert d.program("a").status is Status.ACTIVE


def test_the_engines_events_of_the_last_turns_do_not_take_a_goodbye_back() -> None:
    """The hooks' word comes on a connection of its own, and may be here before the engine's batch of events."""
    d = Driver(fixed(1))
    d.submit("a", "a.1")
    d.end("a")
    d.wait(4.9)
    d.submit("a", "a.2")
    d.finish("a", "a.1")
    d.finish("a", "a.2", tool="bash", calls=1)
    assert (d.program("a").status, d.program("a").open_turns, d.ledger.programs.charges.active_roots) == (
        Status.ENDED,
        0,
        0,
    )
    d.ask("b")
    assert d.admitted() == ["b"]
    d.tick(61)
    assert "a" not in d.ledger.programs.by_name


def test_a_childs_late_events_do_not_take_its_roots_goodbye_back() -> None:
    d = Driver()
    d.run_turn("root")
    d.ask("child", parent="root")
    d.tick()
    d.end("root")
    d.submit("child")
    assert (d.program("child").status, d.program("root").status) == (Status.ENDED, Status.ENDED)
    d.finish("child")
    d.wait(5)
    d.submit("child", "child.2")
    assert (d.program("child").status, d.program("root").status) == (Status.ACTIVE, Status.ACTIVE)


def test_what_an_engine_tells_late_by_much_does_not_take_a_goodbye_back() -> None:
    """It was cut off for half a minute; its clock began 1,000 s before ours."""
    d, ahead_ns = Driver(), seconds(1000)

    def submit(turn: str, late_s: int) -> None:
        at_ns = d.now_ns + ahead_ns - seconds(late_s)
        d.send(d.engine(ev.TurnSubmitted, program_id="a", turn_id=turn, projected_blocks=10, at_ns=at_ns))

    submit("a.1", 0)
    d.finish("a")
    d.end("a")
    d.wait(30)
    submit("a.2", 31)
    assert d.program("a").status is Status.ENDED
    d.finish("a", "a.2")
    submit("a.3", 2)
    assert d.program("a").status is Status.ACTIVE, "it came back, and its engine is two seconds late"


def test_an_engines_samples_tell_its_clock_before_it_is_late() -> None:
    """It was cut off before it had told of any turn."""
    d = Driver()
    d.send(d.engine(ev.PoolSampled, total_blocks=100, free_blocks=100, block_tokens=1, at_ns=d.now_ns))
    d.wait(10)
    d.ask("a")
    d.tick()
    d.end("a")
    d.wait(7)
    asked_ns = d.now_ns - seconds(8)
    d.send(d.engine(ev.TurnSubmitted, program_id="a", turn_id="a.1", projected_blocks=10, at_ns=asked_ns))
    assert d.program("a").status is Status.ENDED


def test_a_gate_that_was_taken_for_gone_is_known_to_be_late() -> None:
    """It shares its place with another one, had nothing to tell for long, and then was cut off."""
    d, first = Driver(), Publisher("node/gate/0")
    d.send(first(ev.CommandApplied, command_id=1, at_ns=d.now_ns))
    d.wait(1)
    d.ask("other", at_ns=d.now_ns)
    d.tick(30)
    assert first.name not in d.ledger.publishers.sequences
    d.end("a")
    queued = {"program_id": "a", "turn_id": "a.1", "at_ns": d.now_ns - seconds(3)}
    d.wait(2)
    d.send(first(ev.TurnQueued, **queued))
    assert d.program("a").status is Status.ENDED


def test_a_turn_that_has_ended_is_not_held() -> None:
    """Its engine's word came before its gate's."""
    d = Driver()
    d.run_turn("a")
    d.ask("a")
    assert (d.ledger.gates.held, d.counts.late) == ({}, 1)


def test_a_gate_that_was_cut_off_takes_no_goodbye_back_with_what_it_held_before() -> None:
    d = Driver()
    d.ask("b", "b.1", at_ns=d.now_ns)
    d.run_turn("a", "a.2")
    d.end("a")
    d.wait(30)
    d.ask("a", "a.1", at_ns=d.now_ns - seconds(32))
    assert (d.program("a").status, d.counts.late) == (Status.ENDED, 1)
    d.ask("a", "a.3", at_ns=d.now_ns)
    assert d.program("a").status is Status.WAITING


def test_a_held_turn_takes_a_goodbye_back_at_once() -> None:
    """The gate holds a turn as soon as it is asked for: that is no late event."""
    d = Driver()
    d.run_turn("a")
    d.end("a")
    d.ask("a", "a.2")
    assert d.admitted() == ["a"]
    d.submit("a", "a.2")
    assert d.program("a").status is Status.ACTIVE


def test_a_first_token_of_a_program_that_was_forgotten_is_late() -> None:
    d = Driver()
    first_token(d, "gone", "gone.1", prompt_tokens=100)
    assert (d.ledger.programs.by_name, d.counts.late) == ({}, 1)


def test_who_ended_and_runs_elsewhere_is_charged_on_neither_engine() -> None:
    """Two engines, and a program that said goodbye: its last turn's events come late, from the other engine."""
    d = Driver()
    engines = [Publisher("node/engine-1/x"), Publisher("node/engine-2/x")]
    for engine in engines:
        d.send(engine(ev.PoolSampled, total_blocks=100, free_blocks=100, block_tokens=1))
    d.engine = engines[0]
    d.run_turn("a", prompt=50)
    d.end("a")
    d.engine = engines[1]
    d.submit("a", "a.2", blocks=60)
    assert d.program("a").replica == "node/engine-2"
    assert not any(d.ledger.programs.charges.placed_blocks.values())
    assert recounted(d.ledger).programs.charges.placed_blocks.total() == 0


def test_ended_programs_are_forgotten() -> None:
    d = Driver()
    for name in "abc":
        d.run_turn(name)
        d.end(name)
    d.tick(59)
    assert set(d.ledger.programs.by_name) == {"a", "b", "c"}
    d.ask("b", "b.2")
    d.tick(2)
    assert set(d.ledger.programs.by_name) == {"b"}


def test_an_ended_program_with_an_open_turn_is_remembered_until_that_ends() -> None:
    d = Driver()
    d.submit("a")
    d.end("a")
    d.tick(61)
    assert "a" in d.ledger.programs.by_name
    d.send(d.engine(ev.TurnEnded, program_id="a", turn_id="a.1", ok=False))
    d.tick(61)
    assert "a" not in d.ledger.programs.by_name
    assert d.counts.contradictions == 0


def test_a_tool_of_an_ended_program_outlives_no_record() -> None:
    """A tool that starts late keeps its program's record, else the publisher's end would find none."""
    d = Driver()
    d.run_turn("a")
    d.end("a")
    d.start_tool("a")
    d.tick(61)
    d.tick(61)
    assert d.program("a").open_tools == 1
    run(d.ledger.holdings.forget("node/tool/1", d.now_ns))
    assert d.ledger.tools.active == 0
    d.tick(61)
    d.tick(61)
    assert d.ledger.programs.by_name == {}


def test_memory_returns_to_nothing() -> None:
    d = Driver()
    d.pool()
    for number in range(300):
        name = f"p{number}"
        d.ask(name)
        d.ask(f"{name}.child", parent=name)
        d.tick()
        d.run_turn(name)
        d.run_turn(f"{name}.child")
        d.start_tool(name)
        d.end_tool(name)
        d.end(name)
    d.tick(61)  # their children, who never said goodbye, were waited for
    d.tick(61)
    ledger = d.ledger
    assert ledger.programs.by_name == ledger.gates.held == ledger.turns.running == ledger.tools.calls == {}
    assert ledger.publishers.early_ends == {}
    programs = ledger.programs
    assert programs.queue == programs.active == programs.dormant == programs.askers == {}
    assert programs.children == ledger.gates.held_of == {}
    assert not ledger.runs._ended


# Publishers


def test_a_publisher_that_skips_is_asked() -> None:
    d = Driver()
    d.submit("a")
    d.engine.skip(3)
    d.finish("a")
    assert d.counts.gaps == 1
    assert [c.publisher for c in of(cmd.StateRequest, d.tick())] == ["node/engine/1"]


def test_numbers_of_two_publishers_do_not_mix() -> None:
    d = Driver()
    other = Publisher("node/tool/2")
    d.start_tool("a")
    d.send(other(ev.ToolStarted, program_id="b", call_id="b.call", tool="bash"))
    assert d.counts.duplicates == d.counts.gaps == 0


def test_a_restarted_engine_has_dropped_its_turns() -> None:
    d = Driver()
    d.submit("a")
    d.pool(retractions=9)
    d.start_tool("a")
    d.now_ns += seconds(6)
    d.engine = Publisher("node/engine/2")
    d.pool(retractions=2)
    assert (d.program("a").open_turns, d.program("a").open_tools, d.ledger.turns.running) == (0, 1, {})
    assert "node/engine/1" not in d.ledger.publishers.sequences
    assert d.ledger.turns.signals.retractions == 0


def test_a_restarted_gate_has_dropped_its_held_turns() -> None:
    d = Driver()
    d.ask("a")
    d.now_ns += seconds(6)
    d.gate = Publisher("node/gate/2")
    d.ask("b")
    assert list(d.ledger.programs.queue) == ["b"]


@pytest.mark.parametrize("second", ["node/tool/2", "other/engine/2", "node2/engine/1", "engine"])
def test_other_publishers_replace_nobody(second: str) -> None:
    d = Driver()
    d.submit("a")
    d.start_tool("a")
    d.send(Publisher(second)(ev.ProgramArrived, program_id="b"))
    assert (d.program("a").open_turns, d.program("a").open_tools) == (1, 1)


def test_retractions_count_up_from_the_first_sample() -> None:
    d = Driver()
    d.pool(retractions=5)
    assert d.ledger.turns.signals.retractions == 0
    d.pool(retractions=7)
    d.pool(retractions=7)
    d.pool(retractions=8)
    assert d.ledger.turns.signals.retractions == 3


def test_answers_to_commands_are_counted_and_a_rejected_pin_is_not_believed() -> None:
    d = Driver()
    d.submit("a")
    d.program("a").retained_until_ns = d.now_ns + 5
    d.send(d.engine(ev.CommandApplied, command_id=1, program_id="a"))
    assert d.program("a").retained_until_ns
    d.send(d.engine(ev.CommandRejected, command_id=2, program_id="a"))
    d.send(d.engine(ev.CommandRejected, command_id=3, program_id="nobody"))
    assert d.program("a").retained_until_ns == 0
    assert (d.counts.commands_applied, d.counts.commands_rejected) == (1, 2)


def test_a_gap_is_from_a_turns_end_to_the_next_turn_whatever_was_told() -> None:
    d = Driver()
    d.run_turn("a")
    d.wait(4)
    d.run_turn("a", "a.2")
    d.start_tool("a")
    d.wait(9)
    d.end_tool("a")
    d.wait(1)
    d.run_turn("a", "a.3")
    assert (d.ledger.estimates.gaps_ns(""), d.ledger.estimates.gaps_ns("bash")) == (
        [seconds(4), seconds(10)],
        [seconds(10)],
    )


def test_waiting_for_us_is_not_part_of_a_gap() -> None:
    d = Driver()
    d.run_turn("a")
    d.wait(4)
    d.ask("a", "a.2")
    d.wait(3)
    d.submit("a", "a.2")
    assert d.ledger.estimates.gaps_ns("") == [seconds(4)]


def test_the_gap_of_a_program_without_a_slot_is_one_too() -> None:
    """Else the gaps of those whose slots are taken back, which are the long ones, would never be seen."""
    d = Driver()
    d.run_turn("a")
    d.ledger.programs.move(d.program("a"), Trigger.PAUSE, d.now_ns)
    d.wait(40)
    d.ask("a", "a.2")
    assert d.ledger.estimates.gaps_ns("") == [seconds(40)]


def test_a_gap_of_more_than_a_day_tells_of_no_program() -> None:
    """A clock that was set while the daemon was away made forecasts useless for thousands of turns."""
    d = Driver()
    d.run_turn("a")
    d.wait(10 * 365 * 86_400)
    d.submit("a", "a.2")
    assert (d.ledger.estimates.gaps_ns(""), d.ledger.estimates.lives.cycle_ns("")) == ([], 0)


def test_a_turn_and_the_gap_behind_it_are_a_cycle() -> None:
    d = Driver()
    d.submit("a")
    d.wait(2)
    d.finish("a")
    d.wait(5)
    d.ask("a", "a.2")
    d.wait(9)
    d.submit("a", "a.2")
    assert d.ledger.estimates.lives.cycle_ns("") == seconds(7), "without the time for which it was held"


def test_growth_is_learned_from_each_turn_and_life_from_the_end() -> None:
    d = Driver()
    for turn, tokens in (("a.1", 100), ("a.2", 350), ("a.3", 200)):  # it forgot a part of its history
        d.run_turn("a", turn, prompt=tokens, output=50)
    d.run_turn("unknown", prompt=0, output=0)
    d.end("unknown")
    everybody = d.ledger.estimates.lives.classes[""]
    assert (everybody.first_tokens, everybody.turns.ends[1]) == (Faded(1, 100), 1.0)
    assert everybody.grown_tokens.count == pytest.approx(0.995 + 1), "the second and the third"
    assert everybody.grown_tokens.total == pytest.approx(0.995 * 250), (
        "from 150 to 400; a shorter one has not grown"
    )
    d.end("a")
    assert everybody.turns.ends == [0.0, pytest.approx(1, rel=0.01), 0.0, 1.0]
    of_its_class = d.ledger.estimates.lives.classes[d.program("a").kind].turns
    assert (of_its_class.fates, of_its_class.ends) == ([0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0])


def test_an_end_that_is_taken_back_was_never_learned() -> None:
    """Also where the turns that it was learned with are fewer than those that it has had by then."""
    d = Driver()
    d.submit("a", "a.1")
    d.run_turn("a", "a.2")
    d.end("a")
    d.finish("a", "a.1")
    d.run_turn("other")
    d.run_turn("other", "other.2")
    d.end("other")
    lives = d.ledger.estimates.lives.classes[""]
    assert (lives.turns.ends, d.program("a").turn_index) == ([0.0, pytest.approx(1, rel=0.01), 1.0], 2)
    d.wait(60)
    d.ask("a", "a.3")
    assert lives.turns.ends[1:] == pytest.approx([0, 1], abs=0.01), "the other's"
