"""How late an event is told, by a clock that is not ours."""

from controlplane.core.ledger.publishers import Lateness
from controlplane.core.types import seconds


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
