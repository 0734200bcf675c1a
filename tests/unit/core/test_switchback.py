"""A switchback: its slices, what counts in them, its interval, and when it ends."""

import random
from collections.abc import Iterator
from dataclasses import replace
from math import sqrt
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.experiment import (
    GAIN,
    LENGTH,
    LOSS,
    Block,
    Slices,
    Switchback,
    SwitchbackRules,
    SwitchbackState,
    confidence_interval,
    judge,
)
from controlplane.core.experiment.outcomes import Outcome, Outcomes, Seen
from controlplane.core.model import events as ev
from controlplane.core.model.errors import ConfigError
from controlplane.core.model.types import seconds

RULES = SwitchbackRules(slice_s=1000.0, washout_s=200.0)
ALPHA, C = 0.05, 0.25


@given(st.lists(st.floats(-3, 3), min_size=6, max_size=30, unique=True), st.floats(-4, 4))
def test_interval_holds_the_means_that_the_mixture_does_not_reject(values: list[float], mean: float) -> None:
    found, n = confidence_interval(values, ALPHA), len(values)
    squares, total = sum((each - mean) ** 2 for each in values), sum(values) - n * mean
    ratio = sqrt(C / (n + C)) * (squares / (squares - total**2 / (n + C))) ** (n / 2)
    if abs(ratio * ALPHA - 1) > 1e-6:
        assert (found.low <= mean <= found.high) is (ratio * ALPHA < 1)


def test_interval_may_be_looked_at_after_each_value() -> None:
    """Of 400 sequences at most one in twenty leaves the truth at any time; some five do after 60 looks."""
    rng, missed = random.Random(1), 0
    for _ in range(400):
        values = [rng.gauss(0.3, 1.0) for _ in range(60)]
        found = [confidence_interval(values[:end], ALPHA) for end in range(1, 61)]
        missed += any(not each.low <= 0.3 <= each.high for each in found)
    assert missed <= 20
    assert not confidence_interval(values[:3], ALPHA).is_bounded


@pytest.mark.parametrize("every", [2, 3, 7])
def test_each_block_has_one_slice_of_stock_wherever_it_is(every: int) -> None:
    slices = Slices(SwitchbackRules(slice_s=1000.0, washout_s=200.0, stock_every=every), "node")
    drawn = [[slices.is_stock(block * every + at) for at in range(every)] for block in range(300)]
    assert all(sum(each) == 1 for each in drawn)
    shares = [sum(each[at] for each in drawn) / 300 for at in range(every)]
    assert all(0.6 / every < share < 1.4 / every for share in shares)


def story(*told: tuple[float, ev.Event]) -> dict[int, Outcome]:
    outcomes: dict[int, Outcome] = {}
    heard = Outcomes(Slices(RULES, ""), outcomes, {})
    for at_s, event in told:
        heard.event(event, seconds(at_s))
    heard.settle(100)
    return outcomes


def program(*, comes_s: float, took_s: float, name: str = "p", ok: bool = True) -> Iterator[tuple[float, ev.Event]]:
    yield comes_s, ev.ProgramArrived(program_id=name)
    yield comes_s, ev.TurnQueued(program_id=name, turn_id="1")
    yield comes_s + 4, ev.FirstToken(program_id=name, turn_id="1", prompt_tokens=100)
    yield comes_s + took_s, ev.TurnEnded(program_id=name, turn_id="1", prompt_tokens=100, output_tokens=50, ok=ok)


END = (2500.0, ev.ProgramEnded(program_id="p"))


@pytest.mark.parametrize(
    ("told", "completion_s"),
    [
        ([*program(comes_s=300, took_s=30), (330.0, END[1])], 30.0),
        ([*program(comes_s=300, took_s=30)], 30.0),  # nobody tells of ends
        ([*program(comes_s=300, took_s=30, ok=False), END], 200.0),  # it failed: it was not done sooner for that
        ([*program(comes_s=790, took_s=150), END], 150.0),
        ([*program(comes_s=790, took_s=900), END], 200.0),  # it lived over the switch
        ([*list(program(comes_s=300, took_s=30))[:-1]], 200.0),  # its turn never ended
        ([*program(comes_s=199, took_s=30), END], None),  # in the washout
        ([*program(comes_s=801, took_s=30), END], None),
        ([(300.0, ev.ProgramArrived(program_id="p", parent_id="q")), *program(comes_s=300, took_s=30)], None),
    ],
)
def test_programs_count_where_they_came(told: list[tuple[float, ev.Event]], completion_s: float | None) -> None:
    outcome = story(*told).get(0, Outcome())
    assert (outcome.completion_s if outcome.programs else None) == completion_s


def test_tokens_that_were_there_before_are_computed_again() -> None:
    later = [
        (340.0, ev.TurnSubmitted(program_id="p", turn_id="2", projected_blocks=1)),
        (342.0, ev.FirstToken(program_id="p", turn_id="2", prompt_tokens=200, cached_tokens=40)),
    ]
    outcome = story(*program(comes_s=300, took_s=30), *later)[0]
    assert (outcome.prompt_tokens, outcome.again_tokens) == (300, 110)
    assert outcome.first_token_s(0.5) == pytest.approx(2.0, rel=0.03)
    assert outcome.first_token_s(0.99) == pytest.approx(4.0, rel=0.03)
    assert outcome.asked_s == pytest.approx(10 + 0.02 * 50)


def noise(mean: float, count: int, censored: int = 0) -> list[Block]:
    rng = random.Random(1)
    return [
        Block(began_ns=0, programs=100, censored=censored, completion=rng.gauss(mean, 0.1)) for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("changes", "rules", "ended"),
    [
        (noise(0.0, 200), {"gain_ratio": 0.0}, ""),
        (noise(-0.3, 12), {"gain_ratio": 0.0}, GAIN),
        (noise(-0.3, 12), {"gain_ratio": 0.3}, ""),
        (noise(-0.3, 12), {}, ""),  # measured on
        (noise(-0.3, 12, censored=20), {"gain_ratio": 0.0}, ""),
        (noise(0.3, 12, censored=20), {}, LOSS),
        (noise(-0.3, 12, censored=20), {"gain_ratio": 0.0}, ""),
        (noise(0.3, 12, censored=20), {}, LOSS),
        (noise(0.3, 12), {}, LOSS),
        (noise(0.3, 12), {"loss_ratio": 0.5}, ""),
        ([*noise(-0.3, 40), *noise(0.5, 12)], {}, LOSS),  # the mean of all is a gain still
        (noise(0.0, 1000), {}, LENGTH),
    ],
)
def test_it_ends_by_the_operators_bounds(changes: list[Block], rules: dict[str, Any], ended: str) -> None:
    why, since = judge(changes, replace(RULES, **rules))
    assert why == ended
    if len(changes) == 52:
        assert 38 <= since <= 44
        assert sum(each.completion for each in changes) < 0


def blocks_until(found: Switchback, end_s: float, *, begin_s: float = 1.0, every_s: float = 5.0) -> None:
    """A program every ten seconds, which takes 20 s under the preset and 40 s under stock."""
    now_s, number = begin_s, 0
    while now_s < end_s:
        found.tick(seconds(now_s))
        took_s = (40.0 if found.is_stock(seconds(now_s)) else 20.0) + number % 7
        if number % 2:
            for at_s, event in program(comes_s=now_s, took_s=took_s, name=f"p{number}-{begin_s}"):
                found.event(event, seconds(at_s))
        now_s, number = now_s + every_s, number + 1


def test_a_restart_goes_on_and_an_absence_spoils_its_block() -> None:
    found = Switchback.begin(RULES, "key", seconds(1))
    assert not found.is_stock(seconds(1)), "before the first whole block the preset holds"
    blocks_until(found, 10_200.0)
    saved = msgspec.json.decode(msgspec.json.encode(found.state), type=SwitchbackState)
    again = Switchback(RULES, "key", saved)
    assert again.estimates() == found.estimates()
    assert (len(again.state.blocks), again.state.left_out) == (3, 0)
    blocks_until(again, 19_500.0, begin_s=10_500.0)
    assert (len(again.state.blocks), again.state.left_out) == (7, 1), "the open one before was over when it began"
    completion = again.estimates()[0]
    assert completion.is_bounded
    assert completion.value == pytest.approx(-0.45, abs=0.05)
    assert len(again.state.programs) < 400


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.integers(4, 60), st.sampled_from([30.0, 300.0, 1700.0])), max_size=4))
def test_a_block_counts_unless_nobody_was_there_for_long(away: list[tuple[int, float]]) -> None:
    found, now_s, out = Switchback.begin(RULES, "key", seconds(1)), 1.0, set()
    for begin_s, long_s in sorted((500.0 * at + 120, long_s) for at, long_s in away):
        if begin_s > now_s:
            blocks_until(found, begin_s, begin_s=now_s)
            now_s = begin_s + long_s
            out |= {int(at_s // 2000) for at_s in (begin_s, now_s) if long_s > 50}
    blocks_until(found, 40_000.0, begin_s=now_s)
    counted = {block.began_ns // seconds(2000) for block in found.state.blocks}
    assert counted == {*range(1, 19)} - out
    assert (found.state.absent, found.state.left_out, found.state.spoiled) == (len(out), len(out), set())


def test_what_was_seen_is_forgotten_at_its_end() -> None:
    state = SwitchbackState(programs={"p": Seen(came_ns=1)}, outcomes={0: Outcome(programs=9)})
    found = Switchback(SwitchbackRules(slice_s=1000.0, washout_s=200.0), "key", state)
    blocks_until(found, 40_000.0)
    assert "p" not in state.programs
    assert len(state.outcomes) < 5


def test_slices_are_four_washouts_long() -> None:
    with pytest.raises(ConfigError, match=r"expected 800 <= slice_s"):
        SwitchbackRules(slice_s=799.0, washout_s=200.0)
