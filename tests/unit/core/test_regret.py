"""The regret ledger: what each decision is charged with, and why a context was missed."""

from collections.abc import Callable
from typing import Any

import pytest

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Program, seconds
from controlplane.core.regret import Cause, Outcome, RegretLedger, Verdict, total_of
from controlplane.core.regret.sums import Total

ENGINE = "node/engine/1"
POOL, PREFILL_S_PER_TOKEN = 10_000, 1e-3
CONTEXT = 4000  # of the program after its first turn


class Story:
    """One program on an engine whose pool is full: it has had its first turn and is away."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.book = RegretLedger(self.verdicts.append)
        self.now_ns = seconds(100)
        self.turn = 1
        self.number = 0
        self.tell(ev.PoolSampled(publisher=ENGINE, total_blocks=POOL, free_blocks=0, evictable_blocks=5000))
        self.tell(ev.TurnSubmitted(publisher=ENGINE, program_id="p", turn_id="p.1", projected_blocks=CONTEXT))
        self.first_token(prompt=3900, cached=0)
        self.end_turn(prompt=3900, output=100)

    def tell(self, event: ev.Event) -> None:
        self.book.event(event, self.now_ns)

    def wait(self, duration_s: float) -> None:
        self.now_ns += seconds(duration_s)

    def decide(self, make: Callable[..., cmd.Command], **values: Any) -> int:
        self.number += 1
        self.book.command(make(command_id=self.number, program_id="p", **values), self.now_ns)
        return self.number

    def first_token(self, *, prompt: int, cached: int, engine: str = ENGINE, **values: Any) -> None:
        """The prefill took a millisecond a token, behind the turn's submission."""
        prefill_ns = seconds((prompt - cached) * PREFILL_S_PER_TOKEN)
        self.now_ns += prefill_ns
        told = {"prompt_tokens": prompt, "cached_tokens": cached, "prefill_ns": prefill_ns} | values
        self.tell(ev.FirstToken(publisher=engine, program_id="p", turn_id=f"p.{self.turn}", **told))

    def end_turn(self, *, prompt: int, output: int = 0, ok: bool = True, **values: Any) -> None:
        sizes = {"prompt_tokens": prompt, "output_tokens": output}
        ended = ev.TurnEnded(publisher=ENGINE, program_id="p", turn_id=f"p.{self.turn}", ok=ok, **sizes, **values)
        self.tell(ended)

    def ask(self) -> None:
        self.turn += 1
        self.tell(ev.TurnQueued(publisher="node/gate/1", program_id="p", turn_id=f"p.{self.turn}", tenant="acme"))

    def submit(self, engine: str = ENGINE, blocks: int = CONTEXT) -> None:
        name = f"p.{self.turn}"
        self.tell(ev.TurnSubmitted(publisher=engine, program_id="p", turn_id=name, projected_blocks=blocks))

    def come_back(self, *, cached: int = CONTEXT, prompt: int = CONTEXT + 500, **values: Any) -> None:
        """At once: asked for, let go and begun."""
        self.ask()
        self.submit(values.get("engine", ENGINE))
        self.first_token(prompt=prompt, cached=cached, **values)

    def of(self, kind: str) -> Verdict:
        (found,) = [verdict for verdict in self.verdicts if verdict.kind == kind]
        return found


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_pin_that_was_hit_costs_its_memory_and_gains_a_prefill(story: Story) -> None:
    number = story.decide(cmd.Retain, ttl_ns=seconds(10))
    story.wait(5)
    story.come_back()
    pin = story.of("retain")
    assert (pin.number, pin.outcome, pin.cause) == (number, Outcome.HIT, Cause.NONE)
    assert (pin.hit_tokens, pin.again_tokens) == (CONTEXT, 0)
    assert pin.held_token_s == pytest.approx(CONTEXT * 5, rel=0.01)
    assert pin.cost_s == pytest.approx(5 * CONTEXT / POOL, rel=0.01)
    assert pin.gain_s == pytest.approx(CONTEXT * PREFILL_S_PER_TOKEN, rel=0.05)
    assert pin.net_s == pin.gain_s - pin.cost_s
    assert pin.best_s == pytest.approx(min(pin.cost_s, pin.gain_s), rel=0.05)
    assert pin.context_tokens == CONTEXT


def test_a_pin_that_was_too_short_is_charged_what_is_computed_again(story: Story) -> None:
    story.decide(cmd.Retain, ttl_ns=seconds(2))
    story.wait(5)
    story.come_back(cached=1000)
    pin = story.of("retain")
    assert (pin.outcome, pin.cause, pin.again_tokens) == (Outcome.MISS, Cause.TTL_SHORT, 3000)
    assert pin.held_token_s == pytest.approx(CONTEXT * 2)
    assert pin.cost_s == pytest.approx(2 * CONTEXT / POOL + 3000 * PREFILL_S_PER_TOKEN, rel=0.05)
    assert story.book.sums.all.again_tokens == 3000


def test_who_came_back_in_time_and_was_held_is_no_matter_of_the_ttl(story: Story) -> None:
    story.decide(cmd.Retain, ttl_ns=seconds(2))
    story.wait(1)
    story.ask()
    story.wait(3)
    story.decide(cmd.Admit)
    story.submit()
    story.first_token(prompt=CONTEXT + 500, cached=0)
    assert story.of("retain").cause is Cause.HELD
    hold = story.of("hold")
    assert (hold.number, hold.wait_s, hold.outcome) == (2, 3.0, Outcome.RAN)
    assert hold.estimated


def test_a_pin_that_the_engine_gave_up_is_told_of_whatever_came_of_it(story: Story) -> None:
    story.decide(cmd.Retain, ttl_ns=seconds(10))
    story.wait(1)
    story.tell(ev.PinReclaimed(publisher=ENGINE, program_id="p"))
    story.wait(4)
    story.come_back(cached=0)
    pin = story.of("retain")
    assert (pin.outcome, pin.cause, pin.held_token_s) == (Outcome.MISS, Cause.RECLAIMED, CONTEXT)
    assert story.book.sums.pins_lost == 1


def test_what_new_weights_have_ended_no_decision_is_blamed_for(story: Story) -> None:
    story.decide(cmd.Retain, ttl_ns=seconds(10))
    story.wait(1)
    story.tell(ev.CacheFlushed(publisher="node/gate/1"))
    story.come_back(cached=0)
    assert story.of("retain").cause is Cause.FLUSHED


def test_a_pin_that_was_given_up_as_it_was_to_be_renewed_is_told_of(story: Story) -> None:
    """The engine gives the first one up, and refuses the second, of which the ledger has heard already."""
    story.decide(cmd.Retain, ttl_ns=seconds(10))
    number = story.decide(cmd.Retain, ttl_ns=seconds(20))
    story.tell(ev.PinReclaimed(publisher=ENGINE, program_id="p"))
    story.tell(ev.CommandRejected(publisher=ENGINE, program_id="p", command_id=number))
    story.wait(4)
    story.come_back(cached=0)
    former, pin = (verdict for verdict in story.verdicts if verdict.kind == "retain")
    assert former.outcome is Outcome.REPLACED
    assert (pin.outcome, pin.cause, pin.again_tokens) == (Outcome.MISS, Cause.RECLAIMED, CONTEXT)


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (cmd.Release, Cause.RELEASED),
        (cmd.Discard, Cause.DISCARDED),
        (cmd.Demote, Cause.DEMOTED),
    ],
)
def test_the_last_word_is_charged_and_gains_the_memory_that_it_freed(
    story: Story, make: type[cmd.ProgramCommand], cause: Cause
) -> None:
    story.decide(cmd.Retain, ttl_ns=seconds(100))
    story.wait(1)
    story.decide(cmd.Pause)  # which leaves a pin as it is, and is charged only where nothing else was said
    number = story.decide(make)
    story.wait(4)
    story.come_back(cached=0)
    word = story.of(make.__name__.lower())
    assert (word.number, word.outcome, word.again_tokens, word.cause) == (number, Outcome.MISS, CONTEXT, cause)
    assert word.freed_token_s == pytest.approx(CONTEXT * 4)
    assert word.gain_s == pytest.approx(4 * CONTEXT / POOL)
    pin = story.of("retain")
    assert (pin.outcome, pin.again_tokens, pin.held_token_s) == (Outcome.REPLACED, 0, CONTEXT)


def test_a_pause_alone_is_charged_the_wait_behind_it_and_the_context(story: Story) -> None:
    story.decide(cmd.Pause)
    story.wait(2)
    story.ask()
    story.wait(3)
    story.submit()
    story.first_token(prompt=CONTEXT + 500, cached=0)
    pause = story.of("pause")
    assert (pause.cause, pause.again_tokens, pause.wait_s) == (Cause.PAUSED, CONTEXT, 3.0)
    assert [verdict.kind for verdict in story.verdicts] == ["pause"], "its hold is its own"


def test_what_nobody_decided_is_charged_to_nobody(story: Story) -> None:
    story.wait(5)
    story.come_back(cached=1000)
    verdict = story.of("nobody")
    assert (verdict.number, verdict.cause, verdict.again_tokens) == (0, Cause.PRESSURE, 3000)
    assert not verdict.is_rest


def test_a_context_that_was_there_by_itself_is_a_rest(story: Story) -> None:
    story.wait(1)
    story.come_back()
    verdict = story.of("nobody")
    assert verdict.is_rest
    assert verdict.paid_s == pytest.approx(CONTEXT / POOL, rel=0.01)


@pytest.mark.parametrize(
    ("engine", "listed", "cause"),
    [
        ("node/engine/2", None, Cause.ENGINE_GONE),
        ("node/engine-2/1", ("node/engine", "node/engine-2"), Cause.MOVED),
        ("node/engine-2/1", ("node/engine-2",), Cause.ENGINE_GONE),
    ],
    ids=["another boot", "another engine", "a lost engine"],
)
def test_another_engine_has_no_context(
    story: Story, engine: str, listed: tuple[str, ...] | None, cause: Cause
) -> None:
    story.decide(cmd.Retain, ttl_ns=seconds(100))
    if listed is not None:
        story.tell(ev.EnginesListed(serving=listed))
    story.wait(1)
    story.come_back(cached=0, engine=engine)
    assert story.of("retain").cause is cause


def test_a_place_elsewhere_is_charged_what_it_left_behind(story: Story) -> None:
    story.decide(cmd.Place, replica="node/engine-2", leaves="node/engine")
    story.decide(cmd.Place, replica="node/engine-2", leaves="node/engine", moves=True)  # it is sent there
    story.come_back(cached=0, engine="node/engine-2/1")
    place = story.of("place")
    assert (place.number, place.cause, place.again_tokens) == (1, Cause.MOVED, CONTEXT)


def test_what_was_loaded_from_below_is_no_hit_on_the_device_and_takes_its_time(story: Story) -> None:
    story.decide(cmd.Demote)
    story.wait(5)
    story.come_back(loaded_tokens=CONTEXT, prefill_ns=seconds(2))
    word = story.of("demote")
    assert (word.hit_tokens, word.again_tokens, word.outcome, word.cause) == (0, 0, Outcome.HIT, Cause.DEMOTED)
    assert word.cost_s == pytest.approx(1.5, rel=0.05)
    assert word.freed_token_s > 0


def test_a_history_that_was_written_anew_is_nobodys_fault(story: Story) -> None:
    story.decide(cmd.Retain, ttl_ns=seconds(100))
    story.come_back(prompt=3000, cached=0)
    pin = story.of("retain")
    assert (pin.outcome, pin.again_tokens) == (Outcome.REWRITTEN, 0)


def test_a_pin_of_a_run_that_ended_kept_memory_for_nobody(story: Story) -> None:
    story.decide(cmd.Retain, ttl_ns=seconds(3))
    story.wait(10)
    story.tell(ev.ProgramEnded(program_id="p"))
    pin = story.of("retain")
    assert (pin.outcome, pin.gain_s, pin.held_token_s) == (Outcome.ENDED, 0.0, CONTEXT * 3)
    story.decide(cmd.Release)
    assert story.book.sums.unheard == 1, "a farewell is no decision"


def test_a_goodbye_may_overtake_what_the_engine_tells_of_the_last_turn(story: Story) -> None:
    story.decide(cmd.Retain, ttl_ns=seconds(3))
    story.wait(10)
    story.ask()
    story.submit()
    story.tell(ev.ProgramEnded(program_id="p"))
    assert story.verdicts == []
    story.first_token(prompt=CONTEXT + 500, cached=0)
    assert story.of("retain").again_tokens == CONTEXT
    story.end_turn(prompt=CONTEXT + 500)
    assert story.book.sums.ends == 1
    story.decide(cmd.Release)
    assert story.book.sums.unheard == 1
    story.wait(61)
    story.book.tick(story.now_ns)
    assert len(story.verdicts) == 1


def test_a_run_that_goes_on_behind_its_end_is_judged_again(story: Story) -> None:
    story.tell(ev.ProgramEnded(program_id="p"))
    story.tell(ev.ProgramEnded(program_id="p"))
    assert story.book.sums.ends == 1
    story.wait(10)
    story.come_back(cached=0)
    story.end_turn(prompt=CONTEXT + 500)
    story.decide(cmd.Retain, ttl_ns=seconds(3))
    story.come_back(cached=0, prompt=5000)
    assert story.of("nobody").again_tokens == CONTEXT
    assert story.of("retain").again_tokens == CONTEXT + 500


def test_a_client_that_says_that_its_turn_was_the_last_ends_the_run(story: Story) -> None:
    story.decide(cmd.Retain, ttl_ns=seconds(3))
    story.tell(ev.ReplyRead(program_id="p", turn_id="p.1", is_last=True))
    assert story.of("retain").outcome is Outcome.ENDED


def test_a_pin_that_is_set_anew_ends_the_one_before(story: Story) -> None:
    story.decide(cmd.Retain, ttl_ns=seconds(10))
    story.wait(1)
    story.decide(cmd.Retain, ttl_ns=seconds(10))
    story.wait(1)
    story.come_back()
    assert [(v.number, v.outcome, round(v.held_token_s)) for v in story.verdicts] == [
        (1, Outcome.REPLACED, CONTEXT),
        (2, Outcome.HIT, CONTEXT),
    ]


def test_what_the_engine_would_not_do_costs_nothing(story: Story) -> None:
    number = story.decide(cmd.Retain, ttl_ns=seconds(10))
    story.tell(ev.CommandRejected(publisher="node/engine-2/1", command_id=number, program_id="p"))
    assert story.verdicts == [], "another engine does not have it"
    story.tell(ev.CommandRejected(publisher=ENGINE, command_id=number, program_id="p"))
    pin = story.of("retain")
    assert (pin.outcome, pin.cost_s, pin.gain_s) == (Outcome.REJECTED, 0.0, 0.0)
    story.come_back(cached=0)
    assert story.of("nobody").again_tokens == CONTEXT


def test_a_hold_is_weighed_with_what_it_kept_in_the_cache(story: Story) -> None:
    story.come_back()
    story.end_turn(prompt=4500)
    story.ask()
    story.wait(4)
    story.decide(cmd.Admit)
    story.submit(blocks=7500)  # 3,000 more than its own context, and nothing is free
    hold = story.of("hold")
    assert (hold.hit_tokens, hold.wait_s, hold.cost_s) == (3000, 4.0, 4.0)
    assert hold.gain_s == pytest.approx(3000 * PREFILL_S_PER_TOKEN, rel=0.1)
    assert (hold.tenant, hold.estimated) == ("acme", True)


def test_a_client_that_goes_while_held_has_waited_for_nothing(story: Story) -> None:
    story.ask()
    story.wait(7)
    story.tell(ev.TurnAbandoned(program_id="p", turn_id="p.2"))
    hold = story.of("hold")
    assert (hold.outcome, hold.wait_s, hold.gain_s) == (Outcome.ABANDONED, 7.0, 0.0)


def test_an_admission_is_charged_its_wait_in_the_engine_and_what_a_retraction_cost(story: Story) -> None:
    story.ask()
    number = story.decide(cmd.Admit)
    story.submit()
    story.first_token(prompt=CONTEXT + 500, cached=CONTEXT, launch_delay_ns=seconds(2))
    story.end_turn(prompt=CONTEXT + 500, recomputed_tokens=1000)
    admit = story.of("admit")
    assert (admit.number, admit.outcome, admit.cause) == (number, Outcome.RAN, Cause.RETRACTED)
    assert admit.again_tokens == 1000
    assert admit.cost_s == pytest.approx(2 + 1000 * PREFILL_S_PER_TOKEN, rel=0.1)
    story.come_back(prompt=6000, cached=4500)
    story.end_turn(prompt=6000, recomputed_tokens=700)
    retracted = [verdict for verdict in story.verdicts if verdict.cause is Cause.RETRACTED]
    assert [(verdict.kind, verdict.again_tokens) for verdict in retracted] == [("admit", 1000), ("nobody", 700)]


def test_events_that_come_twice_are_counted_once(story: Story) -> None:
    story.wait(1)
    story.come_back(cached=0)
    story.tell(ev.FirstToken(publisher=ENGINE, program_id="p", turn_id="p.2", prompt_tokens=4500))
    story.end_turn(prompt=4500, recomputed_tokens=10)
    story.end_turn(prompt=4500, recomputed_tokens=10)
    assert story.book.sums.all.again_tokens == CONTEXT + 10


def test_the_tool_of_the_gap_is_told_by_whoever_tells_first(story: Story) -> None:
    story.tell(ev.ReplyRead(program_id="p", turn_id="p.1", tool="bash"))
    story.tell(ev.ToolStarted(program_id="p", call_id="1", tool="pytest"))
    story.decide(cmd.Retain, ttl_ns=seconds(9))
    story.come_back()
    assert story.of("retain").tool == "bash"


def test_who_is_silent_for_an_hour_is_unknown_and_forgotten(story: Story) -> None:
    story.decide(cmd.Retain, ttl_ns=seconds(3))
    story.ask()
    story.decide(cmd.Admit)
    story.wait(1800)
    story.book.tick(story.now_ns)
    assert story.verdicts == []
    story.wait(1801)
    story.book.tick(story.now_ns)
    assert {(verdict.kind, verdict.outcome) for verdict in story.verdicts} == {
        ("retain", Outcome.UNKNOWN),
        ("admit", Outcome.UNKNOWN),
        ("hold", Outcome.UNKNOWN),
    }


def test_a_ledger_that_begins_in_the_middle_knows_contexts_and_not_whose_pins_they_are() -> None:
    verdicts: list[Verdict] = []
    book, now_ns = RegretLedger(verdicts.append), seconds(50)
    program = Program(program_id="p", turn_index=2, context_tokens=1000, prompt_tokens=900, gap_tool="bash")
    program.retained_until_ns = now_ns + seconds(10)
    book.resume([program, Program(program_id="new")], now_ns)
    told = {"program_id": "p", "turn_id": "p.3", "prompt_tokens": 1200}
    book.event(ev.FirstToken(publisher=ENGINE, cached_tokens=200, **told), now_ns + seconds(1))
    (verdict,) = verdicts
    assert (verdict.kind, verdict.number, verdict.again_tokens, verdict.tool) == ("retain", 0, 800, "bash")
    assert verdict.cause is Cause.PRESSURE


def test_sums_of_nothing_are_no_regret() -> None:
    assert Total().regret_ratio == 1.0
    assert total_of([]).net_s == 0
    book = RegretLedger()
    book.command(cmd.SetWindow(limit=1, window=1.0), 0)
    book.config("", 0)
    for event in (
        ev.TurnAbandoned(program_id="q", turn_id="1"),
        ev.ReplyRead(program_id="q", turn_id="1"),
        ev.ToolStarted(program_id="q", call_id="1", tool="x"),
        ev.PinReclaimed(program_id="q"),
        ev.CommandRejected(command_id=1, program_id="q"),
        ev.ProgramEnded(program_id="q"),
    ):
        book.event(event, 1)
    assert book.sums.all.count == 0
    assert book.sums.pins_lost == 1
