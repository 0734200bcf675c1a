"""What publishers tell: duplicates, gaps, numbers that come late, and how late by a clock that is not ours."""

import random

from controlplane.core.ledger.publishers import Arrival, Lateness, Sequence
from controlplane.core.types import seconds

# Numbers


def test_numbers_in_order_are_new() -> None:
    sequence = Sequence()
    assert [sequence.note(n) for n in (1, 2, 3)] == [Arrival.NEW] * 3
    assert sequence.expected == 4
    assert sequence.missing == []


def test_a_number_again_is_a_duplicate() -> None:
    sequence = Sequence()
    sequence.note(1)
    assert sequence.note(1) is Arrival.DUPLICATE
    assert sequence.expected == 2


def test_a_jump_tells_what_is_missing() -> None:
    sequence = Sequence()
    sequence.note(1)
    assert sequence.note(5) is Arrival.AFTER_GAP
    assert sequence.missing == [(2, 4)]


def test_a_first_number_above_one_is_a_gap() -> None:
    assert Sequence().note(7) is Arrival.AFTER_GAP


def test_late_numbers_fill_a_gap_once_each() -> None:
    sequence = Sequence()
    sequence.note(6)
    assert sequence.note(3) is Arrival.NEW
    assert sequence.missing == [(1, 2), (4, 5)]
    assert sequence.note(3) is Arrival.DUPLICATE
    for number in (1, 5, 4, 2):
        assert sequence.note(number) is Arrival.NEW
    assert sequence.missing == []


def test_after_a_resync_late_numbers_are_history() -> None:
    sequence = Sequence()
    sequence.note(6)
    sequence.resynced()
    assert sequence.note(3) is Arrival.DUPLICATE
    assert sequence.note(7) is Arrival.NEW


def test_many_gaps_stay_bounded_and_the_latest_are_kept() -> None:
    sequence = Sequence()
    for number in range(2, 1002, 2):
        sequence.note(number)
    assert len(sequence.missing) <= 64
    assert sequence.note(999) is Arrival.NEW
    assert sequence.note(1) is Arrival.DUPLICATE


def test_late_numbers_that_split_one_gap_stay_bounded() -> None:
    sequence = Sequence()
    sequence.note(10_000)
    for number in range(2, 10_000, 2):
        sequence.note(number)
    assert len(sequence.missing) <= 64


def test_any_order_of_few_numbers_takes_each_exactly_once() -> None:
    numbers = list(range(1, 41)) * 2
    random.Random(5).shuffle(numbers)
    sequence = Sequence()
    fresh = [n for n in numbers if sequence.note(n) is not Arrival.DUPLICATE]
    assert sorted(fresh) == list(range(1, 41))
    assert sequence.missing == []


# Lateness


def test_it_is_the_way_beyond_the_quickest_that_was_seen() -> None:
    lateness = Lateness()
    assert lateness.of("p", 100, 5000) == 0, "nothing is known of it"
    lateness.note("p", 100, 5000)
    assert lateness.of("p", 200, 5100) == 0
    assert lateness.of("p", 200, 5150) == 50
    lateness.note("p", 300, 5190)
    assert lateness.of("p", 400, 5300) == 10


def test_a_publisher_that_does_not_say_when_is_not_late() -> None:
    lateness = Lateness()
    lateness.note("p", 0, seconds(5))
    assert (lateness.seen, lateness.of("p", 0, seconds(9))) == ({}, 0)


def test_clocks_may_drift_apart() -> None:
    """A part in 20,000: after a day ours is 4 s ahead, and that is no lateness."""
    lateness = Lateness()
    for hour in range(25):
        at_ns = 1 + seconds(3600 * hour)
        lateness.note("p", at_ns, at_ns + at_ns // 20_000)
    assert lateness.of("p", at_ns, at_ns + at_ns // 20_000) == 0


def test_so_many_publishers_are_remembered() -> None:
    lateness = Lateness()
    for number in range(2000):
        lateness.note(f"p{number}", 1, 2 + number)
        lateness.note("of all the time", 1, 2 + number)
    assert len(lateness.seen) == 1024
    assert lateness.of("of all the time", 1, 2000) > 0
    assert {"p0", "p1999"} & lateness.seen.keys() == {"p1999"}
