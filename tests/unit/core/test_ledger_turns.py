"""What turns do to the ledger: charges, gaps, estimates; late, lost, duplicate and contradictory events."""

import pytest
from support.core_driver import Driver

from controlplane.core.estimators.class_stats import DecayedMean
from controlplane.core.ledger import Ledger
from controlplane.core.model import events as ev
from controlplane.core.model.errors import RemoteEventError
from controlplane.core.model.steps import run
from controlplane.core.model.types import Status, Tier, seconds


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
    assert d.ledger.estimates.output.value == 50


def test_what_was_held_before_the_size_of_a_block_was_known_is_counted_anew() -> None:
    d = Driver()
    d.ask("a", tokens=105)
    d.pool(block_tokens=10)
    assert (d.program("a").queued_blocks, d.ledger.programs.charges.queued_blocks) == (11, 11)


# Figures


def first_token(d: Driver, name: str, turn: str, **figures: int) -> None:
    d.send(d.engine(ev.FirstToken, program_id=name, turn_id=turn, **figures))


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
    assert d.ledger.estimates.marginal_throughput < 0.5, "ten times as long beside another"


def test_a_turn_whose_beginning_was_lost_teaches_nothing_of_sharing() -> None:
    d = Driver()
    d.run_turn("a")
    first_token(d, "a", "a.9", prompt_tokens=1000, prefill_ns=1_000_000)
    d.send(d.engine(ev.TurnEnded, program_id="a", turn_id="a.9", output_tokens=101, service_ns=2_000_000))
    assert d.ledger.estimates.sharing.service_ns == 0


@pytest.mark.parametrize(
    ("cached", "loaded", "delays", "cold"),
    [(500, 0, 0, 0), (1000, 500, 0, 0), (1000, 501, 1, 0), (400, 0, 1, 1), (499, 499, 1, 1)],
)
def test_who_comes_back_to_a_context_that_left_the_device_teaches_the_delay(
    cached: int, loaded: int, delays: int, cold: int
) -> None:
    """Also where all of it is loaded from below: it has waited for room (Continuum §1). That is no thrashing."""
    d = Driver()
    d.run_turn("a", prompt=1000)
    d.submit("a", "a.2")
    tokens = {"prompt_tokens": 1100, "cached_tokens": cached, "loaded_tokens": loaded}
    first_token(d, "a", "a.2", launch_delay_ns=7, **tokens)
    assert (d.ledger.estimates.eviction_delay.count, d.ledger.turns.signals.cold_returns) == (delays, cold)


def test_a_compacted_prompt_is_not_a_lost_context() -> None:
    d = Driver()
    d.run_turn("a", prompt=10_000)
    d.submit("a", "a.2")
    first_token(d, "a", "a.2", prompt_tokens=800, cached_tokens=600)
    assert d.ledger.estimates.eviction_delay.count == 0


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
    assert estimates.reload_cost_ratio == pytest.approx(100_000 / 400_000)
    assert estimates.host_hit_ratio == pytest.approx(400 / (400 + d.program("a").context_tokens - 1000))


# Late, lost, duplicate, contradictory


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


# Programs that end


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


def test_a_first_token_of_a_program_that_was_forgotten_is_late() -> None:
    d = Driver()
    first_token(d, "gone", "gone.1", prompt_tokens=100)
    assert (d.ledger.programs.by_name, d.counts.late) == ({}, 1)


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
    run(d.ledger.publisher_states.forget("node/tool/1", d.now_ns))
    assert d.ledger.tools.active == 0
    d.tick(61)
    d.tick(61)
    assert d.ledger.programs.by_name == {}


def test_memory_returns_to_nothing() -> None:
    d = Driver()
    d.pool()
    for number in range(20):
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


@pytest.mark.parametrize("is_submitted", [True, False])
def test_the_time_until_a_turn_without_an_answer_is_asked_again_is_no_gap(is_submitted: bool) -> None:
    d = Driver()
    d.run_turn("a")
    d.wait(4)
    if is_submitted:
        d.submit("a", "a.2")
        d.send(d.engine(ev.TurnEnded, program_id="a", turn_id="a.2", ok=False))
    else:
        d.ask("a", "a.2")
        d.ledger.gates.let_go("a.2", d.now_ns)
        d.send(d.gate(ev.TurnAbandoned, program_id="a", turn_id="a.2", reason="the engine's server answered 400"))
    d.run_turn("a", "a.3")
    assert d.ledger.estimates.gaps_ns("") == [seconds(4)]
    assert d.program("a").cycles[1::2] == (seconds(4), 0)


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
    assert (everybody.first_tokens, everybody.turns.ends[1]) == (DecayedMean(1, 100), 1.0)
    assert everybody.grown_tokens.count == pytest.approx(0.995 + 1), "the second and the third"
    assert everybody.grown_tokens.total == pytest.approx(0.995 * 250), (
        "from 150 to 400; a shorter one has not grown"
    )
    d.end("a")
    assert everybody.turns.ends == [0.0, pytest.approx(1, rel=0.01), 0.0, 1.0]
    of_its_class = d.ledger.estimates.lives.classes[d.program("a").class_key].turns
    assert (of_its_class.fates, of_its_class.ends) == ([0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0])
