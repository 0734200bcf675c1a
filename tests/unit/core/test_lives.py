"""How long programs live and how fast they grow, by class; worked out by hand."""

import pytest

from controlplane.core import lives as module
from controlplane.core.lives import Population, class_of


def ended(population: Population, kind: str, *turns: int) -> None:
    for each in turns:
        for reached in range(1, each):
            population.went_on(kind, reached)
        population.ended(kind, each, expected_tokens=0, actual_tokens=0)


@pytest.mark.parametrize(
    ("tokens", "kind"),
    [(0, "t/a/0"), (1, "t/a/0"), (2, "t/a/2"), (2.9, "t/a/3"), (1000, "t/a/19"), (1024, "t/a/20")],
)
def test_a_class_is_a_tenants_agent_and_a_half_octave_of_first_prompts(tokens: float, kind: str) -> None:
    assert class_of("t", "a", tokens) == kind


# Turns


def test_before_any_program_has_ended_ten_turns_are_supposed() -> None:
    population = Population()
    assert population.turns_left("", 0) == 10.0
    assert population.turns_left("t/20", 7) == 3.0
    assert population.turns_left("t/20", 40) == 10.0, "a quarter of what it has reached"
    assert population.turns_left("t/20", 1000) == 250.0


def test_fewer_are_supposed_the_more_programs_were_seen() -> None:
    population = Population()
    ended(population, "", 2, 2, 2)
    seen, mean = population.classes[""].turns.left(0)
    assert mean == 2.0 and seen == pytest.approx(3, rel=0.02)
    assert population.turns_left("", 0) == pytest.approx((3 * 10 + seen * mean) / (3 + seen))
    assert population.turns_left("", 40) == 10.0, "beyond all that were seen"


def test_a_class_that_goes_on_is_expected_to_go_on() -> None:
    """None of it has ended, and all the same it is known not to be as short as the others."""
    population = Population()
    ended(population, "short", 2, 2, 2, 2)
    before = population.turns_left("long", 2)
    for turns in range(1, 9):
        population.went_on("long", turns)
    assert population.turns_left("long", 2) > before
    assert population.turns_left("short", 1) < population.turns_left("long", 1)


def test_a_class_is_shrunk_to_all_programs() -> None:
    population = Population()
    ended(population, "a", 50)
    ended(population, "b", 5)
    of_all = population.turns_left("", 0)
    assert population.turns_left("a", 0) == pytest.approx((4 * of_all + 50) / (4 + 1))
    assert population.turns_left("b", 0) == pytest.approx((4 * of_all + 5) / (4 + 1))
    assert population.turns_left("never seen", 0) == pytest.approx(of_all)


def test_a_class_is_shrunk_to_its_agent_and_that_to_all_programs() -> None:
    population = Population()
    ended(population, class_of("", "chat", 100), 5)
    ended(population, class_of("", "chat", 5000), 5)
    ended(population, class_of("", "coder", 100), 50)
    of_all = population.turns_left("", 0)
    seen, mean = population.classes["/chat"].turns.left(0)
    assert mean == 5.0
    of_chats = (4 * of_all + seen * mean) / (4 + seen)
    assert population.turns_left(class_of("", "chat", 1e6), 0) == pytest.approx(of_chats)
    assert population.turns_left(class_of("", "chat", 100), 0) == pytest.approx((4 * of_chats + 5) / (4 + 1))
    assert population.turns_left(class_of("", "", 100), 0) == pytest.approx(of_all), "nobody said which agent"
    assert population.turns_left(class_of("team", "", 100), 0) == pytest.approx(of_all), "nor of that team"


def test_of_very_many_classes_the_one_heard_of_longest_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_CLASSES", 3)
    population = Population()
    for kind in ("//1", "//2", "//1", "//3"):
        ended(population, kind, 5)
    assert list(population.classes) == ["", "//1", "//3"]


def test_a_class_and_all_programs_forget_a_wrong_end() -> None:
    population = Population()
    ended(population, "a", 1)
    population.revived("a", 1)
    assert population.turns_left("a", 0) == Population().turns_left("a", 0)


# Growth


def test_growth_is_in_tokens_a_turn_and_that_of_a_class_is_shrunk_to_all() -> None:
    population = Population()
    assert population.tokens_a_turn("a", 400) == 100, "a guess: a quarter of a short first prompt"
    assert population.tokens_a_turn("a", 80_000) == 1000, "what agents grow by, however they begin"
    population.grew("a", 500)
    population.grew("b", 100)
    of_all = (8 * 100 + 0.995 * 500 + 100) / (8 + 1.995)
    assert population.tokens_a_turn("", 400) == pytest.approx(of_all)
    assert population.tokens_a_turn("a", 400) == pytest.approx((8 * of_all + 500) / (8 + 1))


def test_the_time_of_a_turn_and_its_gap_likewise() -> None:
    population = Population()
    assert population.cycle_ns("a") == 0.0
    population.cycled("a", 90)
    population.cycled("b", 10)
    of_all = (0.995 * 90 + 10) / 1.995
    assert population.cycle_ns("never seen") == pytest.approx(of_all)
    assert population.cycle_ns("a") == pytest.approx((8 * of_all + 90) / (8 + 1))


def test_a_forecast_is_held_against_what_came_of_it() -> None:
    population = Population()
    population.ended("a", 3, expected_tokens=1000, actual_tokens=1500)
    population.ended("a", 3, expected_tokens=0, actual_tokens=9999)
    for lives in population.of("a"):
        sums = [each.total for each in (lives.expected_tokens, lives.actual_tokens, lives.missed_tokens)]
        assert sums == [1000.0, 1500.0, 500.0]


def test_how_good_the_forecast_was_is_told_of_all_and_of_each_class() -> None:
    population = Population()
    for kind, expected in (("few", 100.0), ("many", 300.0), ("many", 300.0)):
        population.ended(kind, 3, expected_tokens=expected, actual_tokens=200.0)
    population.ended("unknown", 3, expected_tokens=0, actual_tokens=200.0)
    told = population.forecast_errors()
    assert [(each.kind, each.ended) for each in told] == [("", 4), ("many", 2), ("few", 1)]
    assert [each.expected_ratio for each in told[1:]] == pytest.approx([1.5, 0.5])
    assert [each.missed_ratio for each in told[1:]] == pytest.approx([0.5, 0.5])


def test_what_was_answered_before_is_never_out_of_date() -> None:
    population = Population()
    asked = [("", 0), ("a", 2), ("b", 7)]
    learn = [
        lambda: population.went_on("a", 1),
        lambda: population.ended("a", 2, expected_tokens=0, actual_tokens=0),
        lambda: population.cycled("b", 90),
        lambda: population.revived("a", 2),
        lambda: population.cycled("a", 10),
    ]
    answers = []
    for each in learn:
        each()
        answers.append([(population.turns_left(*of), population.cycle_ns(of[0])) for of in asked])
        anew = Population(classes=population.classes)
        assert answers[-1] == [(anew.turns_left(*of), anew.cycle_ns(of[0])) for of in asked]
    assert len({tuple(told) for told in answers}) == len(learn)
