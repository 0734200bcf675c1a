"""What publishers tell: duplicates, gaps, numbers that come late, and how late by a clock that is not ours."""

import random

from controlplane.core.ledger import Ledger
from controlplane.core.ledger.publishers import Arrival, Lateness, SequenceTracker
from controlplane.core.model import events as ev

# Numbers


def test_late_numbers_fill_a_gap_once_each() -> None:
    sequence = SequenceTracker()
    sequence.note(6)
    assert sequence.note(3) is Arrival.NEW
    assert sequence.missing == [(1, 2), (4, 5)]
    assert sequence.note(3) is Arrival.DUPLICATE
    for number in (1, 5, 4, 2):
        assert sequence.note(number) is Arrival.NEW
    assert sequence.missing == []


def test_any_order_of_few_numbers_takes_each_exactly_once() -> None:
    numbers = list(range(1, 41)) * 2
    random.Random(5).shuffle(numbers)
    sequence = SequenceTracker()
    fresh = [n for n in numbers if sequence.note(n) is not Arrival.DUPLICATE]
    assert sorted(fresh) == list(range(1, 41))
    assert sequence.missing == []


# Lateness


def test_so_many_publishers_are_remembered() -> None:
    lateness = Lateness()
    for number in range(2000):
        lateness.note(f"p{number}", 1, 2 + number)
        lateness.note("of all the time", 1, 2 + number)
    assert len(lateness.seen) == 1024
    assert lateness.of("of all the time", 1, 2000) > 0
    assert {"p0", "p1999"} & lateness.seen.keys() == {"p1999"}


def test_each_event_has_a_handler() -> None:
    assert Ledger().handlers.keys() == ev.EVENTS.keys()
