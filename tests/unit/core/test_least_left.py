"""The order by what is left of a program, and how long a large one may be passed over."""

from hypothesis import given
from hypothesis import strategies as st
from made_facts import MadeFacts

from controlplane.core.model.types import Pressure, QueuedProgram
from controlplane.core.policies.packing.least_left import LeastLeft

S = 1_000_000_000


def waiting(name: str, left: float, arrived_s: float = 0.0, lifetimes: float = 1.0) -> QueuedProgram:
    at_ns = round(arrived_s * S)
    return QueuedProgram(
        program_id=name, blocks=1, arrived_at_ns=at_ns, queued_at_ns=at_ns, left=left, lifetimes=lifetimes
    )


def names(queue: list[QueuedProgram], now_s: float, ageing: float = 1.0, *, cpu_overloaded: bool = False) -> str:
    policy = LeastLeft(ageing=ageing)
    order = policy.order(queue, MadeFacts(), Pressure(cpu_overloaded=cpu_overloaded), round(now_s * S))
    return "".join(each.program_id for each in order)


def test_of_programs_that_came_together_the_least_goes_first() -> None:
    assert names([waiting("a", 5), waiting("b", 1), waiting("c", 3)], now_s=10) == "bca"


def test_while_cpus_are_short_the_least_time_goes_first_whatever_it_holds() -> None:
    queue = [waiting("a", 9, lifetimes=0.5), waiting("b", 1, lifetimes=3), waiting("c", 3, lifetimes=1)]
    assert names(queue, now_s=10) == "bca"
    assert names(queue, now_s=10, cpu_overloaded=True) == "acb"
    aged = [waiting("a", 1, lifetimes=2), waiting("b", 1, 100, lifetimes=1)]
    assert (names(aged, 190, cpu_overloaded=True), names(aged, 210, cpu_overloaded=True)) == ("ab", "ba")


def test_who_is_here_for_twice_as_long_may_be_twice_as_large() -> None:
    queue = [waiting("a", 20), waiting("b", 10, arrived_s=100)]
    assert (names(queue, now_s=190), names(queue, now_s=210)) == ("ab", "ba")
    assert names(queue, now_s=190, ageing=0.5) == "ba", "the square root of the time counts less"


@given(
    sizes=st.lists(st.floats(0.1, 100), min_size=2, max_size=20),
    waited_s=st.floats(10, 1e5),
    ageing=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_nobody_who_comes_later_than_a_share_of_its_wait_goes_before_a_large_one(
    sizes: list[float], waited_s: float, ageing: float
) -> None:
    """Of size s, here for t, it is passed only by those of a size q that are here for t (q / s)^(1 / a)."""
    large, least = max(sizes), min(sizes)
    bound_s = waited_s * (least / large) ** (1 / ageing)
    late = [
        waiting(f"late-{number}", size, arrived_s=waited_s - 0.9 * bound_s) for number, size in enumerate(sizes)
    ]
    policy = LeastLeft(ageing=ageing)
    queue = [*late, waiting("large", large)]
    order = policy.order(queue, MadeFacts(), Pressure(), round(waited_s * S))
    assert order[0].program_id == "large"
