"""Served tokens: a program's window begins with its first service and ends by itself."""

from controlplane.core.model.types import seconds
from controlplane.core.policies.priority.attained_service import ServiceWindow
from controlplane.core.policies.priority.mlfq import Mlfq
from controlplane.core.policies.protocols import EngineShape

MINUTE_NS = seconds(60)
MOST_PROGRAMS = 65_536


def test_the_window_begins_with_the_first_service_and_not_before() -> None:
    served = ServiceWindow(MINUTE_NS)
    served.add("p", 100, seconds(50))
    assert served.tokens("p", seconds(110) - 1) == 100
    assert served.tokens("p", seconds(110)) == 0


def test_a_window_of_nothing_counts_nothing() -> None:
    served = ServiceWindow(0)
    served.add("p", 100, 0)
    assert served.tokens("p", 0) == 0


def test_the_programs_served_longest_ago_are_forgotten() -> None:
    served = ServiceWindow(MINUTE_NS)
    for number in range(MOST_PROGRAMS):
        served.add(f"p{number}", 1, 0)
    served.add("p0", 1, 1)  # served again: now p1 is the one that was served longest ago
    served.add("one more", 1, 2)
    assert [served.tokens(name, 3) for name in ("p0", "p1", "p2", "one more")] == [2, 0, 1, 1]


def test_a_quota_demotes_and_the_windows_end_restores() -> None:
    """Policy and window together: what the queue's owner does with both."""
    policy, engine = Mlfq(window_s=60), EngineShape(pool_blocks=6400, block_tokens=16, chunk_tokens=1000)
    served = ServiceWindow(policy.window_ns)

    def level(now_s: float) -> int:
        return policy.level(1, served.tokens("p", seconds(now_s)), engine)

    assert level(0) == 0
    served.add("p", 1500, seconds(10))
    assert level(10) == 0
    served.add("p", 1500, seconds(20))
    assert level(20) == 1
    served.add("p", 20_000, seconds(30))
    assert level(30) == 3
    assert level(69.9) == 3
    assert level(70) == 0
