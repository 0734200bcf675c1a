"""When automatic advice makes a step, what it takes for its effect, and when it takes it back."""

from dataclasses import replace
from math import nan

import pytest

from controlplane.core.tuning import (
    Answer,
    Ask,
    Bound,
    Forecast,
    Keep,
    Order,
    Phase,
    Rules,
    Seen,
    State,
    TakeBack,
    Try,
    advance,
)
from controlplane.core.tuning.judge import effect_by_model

WINDOW = Bound(key="admission.window", low=4, high=24, is_whole=True)
RULES = Rules(bounds=(WINDOW,), step_ratio=0.2, stretch_ns=100, cooldown_ns=1000)


class Node:
    """The rule's surroundings: what it orders is in force at once."""

    def __init__(self, rules: Rules = RULES, window: int = 8) -> None:
        self.rules, self.values = rules, {"admission.window": window}
        self.state = State(version=1, since_ns=0)
        self.version, self.heard_since_ns, self.why_not, self.is_busy = 1, 1, "", False
        self.now_ns = 0

    def at(self, now_ns: int, answer: Answer | None = None) -> Order | None:
        self.now_ns = now_ns
        seen = Seen(
            values=self.values,
            heard_since_ns=self.heard_since_ns,
            version=self.version,
            why_not=self.why_not,
            is_busy=self.is_busy and answer is None,
        )
        self.state, order = advance(self.state, seen, self.rules, now_ns, answer)
        self.is_busy = isinstance(order, Ask) or (self.is_busy and answer is None)
        if isinstance(order, Try):
            self.values[order.step.key] = int(order.step.after)
        elif isinstance(order, TakeBack):
            self.values[order.step.key] = int(order.step.before)
        return order

    def answer(
        self, *forecasts: Forecast, measured: float = 50.0, replayed: float = 50.0, programs: int = 40
    ) -> Answer:
        return Answer(
            number=self.state.asked, measured=measured, replayed=replayed, programs=programs, forecasts=forecasts
        )

    def try_wider(self) -> Try:
        """As far as a step that is predicted to gain a fifth."""
        assert isinstance(self.at(101), Ask)
        order = self.at(110, self.answer(forecast(12, -0.2), forecast(4, 0.5)))
        assert isinstance(order, Try)
        self.heard_since_ns = 110
        return order

    def early(self, measured: float = 40.0, old: float = 50.0) -> Order | None:
        assert isinstance(self.at(160), Ask)
        return self.at(161, self.answer(forecast(8, 0.2, old), measured=measured))

    def late(
        self, measured: float = 40.0, old: float = 50.0, replayed: float = 50.0, programs: int = 40
    ) -> Order | None:
        assert isinstance(self.at(210), Ask)
        answer = self.answer(forecast(8, 0.2, old), measured=measured, replayed=replayed, programs=programs)
        return self.at(215, answer)


def forecast(value: float, change: float, figure: float = 40.0, *, is_advised: bool = True) -> Forecast:
    return Forecast(
        key="admission.window",
        value=value,
        figure=figure,
        change=change,
        low=change - 0.05,
        high=change + 0.05,
        is_advised=is_advised,
    )


def test_it_asks_after_a_whole_stretch_for_one_step_up_and_one_down() -> None:
    node = Node()
    assert node.at(50) is None
    node.heard_since_ns = 40
    assert node.at(120) is None, "what was heard before a gap does not count"
    order = node.at(140)
    assert isinstance(order, Ask)
    assert order.settings == (("admission.window", 12), ("admission.window", 4))


def test_of_what_is_advised_the_best_step_is_made() -> None:
    node = Node()
    order = node.try_wider()
    assert (order.step.before, order.step.after, order.step.predicted) == (8, 12, -0.2)
    assert node.values["admission.window"] == 12


@pytest.mark.parametrize("change", [-0.04, 0.2])
def test_nothing_is_changed_for_little(change: float) -> None:
    node = Node()
    node.at(101)
    assert node.at(110, node.answer(forecast(12, change))) is None
    assert node.state.phase is Phase.LISTENS
    assert "5%" in node.state.reason


def test_nothing_is_changed_for_what_is_not_advised_or_rests_on_few_programs() -> None:
    node = Node()
    node.at(101)
    assert node.at(110, node.answer(forecast(12, -0.9, is_advised=False))) is None
    node.at(220)
    assert node.at(230, node.answer(forecast(12, -0.9), programs=7)) is None
    assert "7 programs" in node.state.reason


def test_of_quite_another_load_the_replays_tell_where_they_tell_what_was_measured() -> None:
    """Eight times the load; under the step's setting the replay has it right, and so the step is judged."""
    node = Node()
    node.try_wider()
    node.early()
    order = node.late(measured=300.0, replayed=290.0, old=400.0)
    assert isinstance(order, Keep)
    assert order.measured == pytest.approx(-0.275)


def test_of_quite_another_load_that_no_replay_tells_nothing_is_said() -> None:
    node = Node()
    node.try_wider()
    node.early()
    order = node.late(measured=300.0, replayed=200.0, old=400.0)
    assert isinstance(order, TakeBack)
    assert "a replay does not tell it" in order.reason
    assert (order.measured, node.state.barred) == (None, ())


def test_of_quite_another_load_a_step_for_the_worse_is_taken_back() -> None:
    node = Node()
    node.try_wider()
    order = node.early(measured=300.0, old=200.0)
    assert order is None, "the replay misses what was measured"
    order = node.late(measured=300.0, replayed=310.0, old=200.0)
    assert isinstance(order, TakeBack)
    assert order.measured == pytest.approx(0.55)


def test_a_hit_rate_on_quite_another_load_is_judged_likewise() -> None:
    assert effect_by_model("hit_rate", 0.40, 0.42, 0.30) == pytest.approx(0.12)
    assert effect_by_model("hit_rate", 0.40, 0.46, 0.30) is None
    assert effect_by_model("mean_jct_s", 10.0, nan, 10.0) is None
    assert effect_by_model("mean_jct_s", 0.0, 10.0, 10.0) is None


def test_what_does_as_predicted_stays() -> None:
    node = Node()
    node.try_wider()
    assert node.early() is None
    order = node.late(measured=42.0)
    assert isinstance(order, Keep)
    assert order.measured == pytest.approx(-0.16)
    assert (node.values["admission.window"], node.state.phase) == (12, Phase.LISTENS)


@pytest.mark.parametrize("measured", [46.0, 50.0, 54.0])
def test_what_does_less_than_half_of_it_is_taken_back(measured: float) -> None:
    node = Node()
    node.try_wider()
    node.early()
    order = node.late(measured=measured)
    assert isinstance(order, TakeBack)
    assert order.measured == pytest.approx(measured / 50 - 1)
    assert node.values["admission.window"] == 8


def test_much_harm_is_seen_at_half_time() -> None:
    node = Node()
    node.try_wider()
    order = node.early(measured=60.0)
    assert isinstance(order, TakeBack)
    assert node.values["admission.window"] == 8


def test_a_load_that_grows_at_the_step_is_not_blamed_on_it() -> None:
    """Everything takes half as long again, under the old setting as well: the step still gained a fifth."""
    node = Node()
    node.try_wider()
    assert node.early(measured=60.0, old=75.0) is None
    order = node.late(measured=60.0, old=75.0)
    assert isinstance(order, Keep)
    assert order.measured == pytest.approx(-0.2)


def test_a_load_that_falls_at_the_step_is_not_its_merit() -> None:
    node = Node()
    node.try_wider()
    node.early(measured=30.0, old=30.0)
    order = node.late(measured=30.0, old=30.0)
    assert isinstance(order, TakeBack)
    assert order.measured == pytest.approx(0.0)


def test_what_the_model_was_off_by_before_is_no_effect() -> None:
    node = Node()
    node.at(101)
    node.at(110, node.answer(forecast(12, -0.2), measured=50.0, replayed=40.0))
    node.heard_since_ns = 110
    node.early(measured=40.0, old=40.0)
    order = node.late(measured=40.0, old=40.0)
    assert isinstance(order, Keep), "50 for 40 before, 40 for 40 now"


def test_where_the_load_is_quite_another_one_nobody_can_tell_and_the_step_may_be_made_again() -> None:
    node = Node()
    node.try_wider()
    node.early(measured=20.0, old=24.0)
    order = node.late(measured=20.0, old=24.0)
    assert isinstance(order, TakeBack)
    assert order.measured is None
    assert (node.state.barred, node.state.in_a_row) == ((), 0)


def test_a_step_behind_which_hardly_anybody_ends_is_taken_back() -> None:
    node = Node()
    node.try_wider()
    node.early()
    assert isinstance(node.late(programs=3), TakeBack)


def test_after_an_undo_it_rests_longer_each_time_and_does_not_repeat_the_step() -> None:
    node = Node()
    for doubled in range(3):
        node.state = replace(node.state, phase=Phase.LISTENS, since_ns=0, barred=())
        node.heard_since_ns = 1
        node.try_wider()
        node.early(measured=60.0)
        assert node.state.phase is Phase.RESTS
        assert node.state.until_ns - node.now_ns == 1000 << doubled
    until_ns = node.state.until_ns
    assert node.at(until_ns - 1) is None
    node.at(until_ns)
    order = node.at(until_ns + 100)
    assert isinstance(order, Ask)
    assert [value for _, value in order.settings] == [4], "wider is barred"


def test_while_the_bus_is_silent_nothing_is_done_and_what_was_heard_does_not_count() -> None:
    node = Node()
    node.try_wider()
    node.why_not = "the bus is away"
    assert node.at(215) is None
    assert node.at(500) is None, "not even the undo that is due"
    node.why_not = ""
    order = node.at(501)
    assert isinstance(order, TakeBack)
    assert "in time" in order.reason


def test_an_answer_that_comes_after_a_silence_is_ignored() -> None:
    node = Node()
    node.at(101)
    answer = node.answer(forecast(12, -0.2))
    node.why_not = "the bus is away"
    node.at(105)
    node.why_not = ""
    assert node.at(110, answer) is None
    assert node.values["admission.window"] == 8


def test_an_operators_change_ends_a_trial_and_is_left_alone_for_a_while() -> None:
    node = Node()
    node.try_wider()
    node.version = 2
    order = node.at(120)
    assert isinstance(order, TakeBack)
    assert (node.values["admission.window"], node.state.phase) == (8, Phase.RESTS)
    assert node.at(900) is None


def test_an_operators_own_value_is_not_taken_back() -> None:
    node = Node()
    node.try_wider()
    node.version, node.values["admission.window"] = 2, 20
    assert node.at(120) is None
    assert node.values["admission.window"] == 20


def test_a_value_outside_its_bounds_stays() -> None:
    node = Node(window=40)
    assert node.at(101) is None
    assert node.state.phase is Phase.RESTS
    assert "no step" in node.state.reason


def test_a_hit_rate_is_judged_by_differences_and_more_is_better() -> None:
    node = Node(replace(RULES, goal="hit_rate"))
    node.at(101)
    order = node.at(110, node.answer(forecast(12, 0.2), forecast(4, -0.3), measured=0.5, replayed=0.55))
    assert isinstance(order, Try)
    node.heard_since_ns = 110
    assert node.early(measured=0.6, old=0.5) is None
    kept = node.late(measured=0.6, old=0.5)
    assert isinstance(kept, Keep)
    assert kept.measured == pytest.approx(0.15)


def test_steps_of_a_ratio_are_short_numbers_within_the_bounds() -> None:
    share = Bound(key="admission.kv_high", low=0.7, high=0.95)
    assert list(share.steps(0.8, 0.25)) == [0.8625, 0.7375]
    assert list(share.steps(0.94, 0.25)) == [0.95, 0.8775]
    assert list(share.steps(0.95, 1.0)) == [0.7]
    assert list(WINDOW.steps(24, 0.01)) == [23]
