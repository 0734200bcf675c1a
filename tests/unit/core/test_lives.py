"""How long programs live and how fast they grow, by class; worked out by hand."""

import pytest

from controlplane.core.estimators import class_stats as module
from controlplane.core.estimators.class_stats import ClassRegistry


def ended(population: ClassRegistry, kind: str, *turns: int) -> None:
    for each in turns:
        for reached in range(1, each):
            population.observe_survival(kind, reached)
        population.ended(kind, each, expected_tokens=0, actual_tokens=0)


# Turns


def test_a_class_that_goes_on_is_expected_to_go_on() -> None:
    """None of it has ended, and all the same it is known not to be as short as the others."""
    population = ClassRegistry()
    ended(population, "short", 2, 2, 2, 2)
    before = population.turns_left("long", 2)
    for turns in range(1, 9):
        population.observe_survival("long", turns)
    assert population.turns_left("long", 2) > before
    assert population.turns_left("short", 1) < population.turns_left("long", 1)


def test_of_very_many_classes_the_one_heard_of_longest_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_CLASSES", 3)
    population = ClassRegistry()
    for kind in ("//1", "//2", "//1", "//3"):
        ended(population, kind, 5)
    assert list(population.classes) == ["", "//1", "//3"]


# Growth


def test_the_time_of_a_turn_and_its_gap_likewise() -> None:
    population = ClassRegistry()
    assert population.cycle_ns("a") == 0.0
    population.cycled("a", 90)
    population.cycled("b", 10)
    of_all = (0.995 * 90 + 10) / 1.995
    assert population.cycle_ns("never seen") == pytest.approx(of_all)
    assert population.cycle_ns("a") == pytest.approx((8 * of_all + 90) / (8 + 1))


def test_how_good_the_forecast_was_is_told_of_all_and_of_each_class() -> None:
    population = ClassRegistry()
    for kind, expected in (("few", 100.0), ("many", 300.0), ("many", 300.0)):
        population.ended(kind, 3, expected_tokens=expected, actual_tokens=200.0)
    population.ended("unknown", 3, expected_tokens=0, actual_tokens=200.0)
    told = population.forecast_errors()
    assert [(each.kind, each.ended) for each in told] == [("", 4), ("many", 2), ("few", 1)]
    assert [each.expected_ratio for each in told[1:]] == pytest.approx([1.5, 0.5])
    assert [each.missed_ratio for each in told[1:]] == pytest.approx([0.5, 0.5])
