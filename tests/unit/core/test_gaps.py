"""What gaps say of a silence: how many last longer, how soon one is likely to end, and who comes back."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.estimators.idle_gaps import Gaps, return_probability
from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.types import Program, seconds

S = seconds(1)


def seen(*gaps_s: float, tool: str = "") -> Gaps:
    gaps = Gaps()
    for gap_s in gaps_s:
        gaps.add(tool, seconds(gap_s))
    return gaps


# The rate


def test_the_rate_is_that_of_the_time_which_is_worth_waiting_for() -> None:
    """Very many gaps of 1 s, as many of 100 s: then only those are left. A dozen points stand for all."""
    gaps = seen(*[1, 100] * 100)
    first, later = (gaps.rate(age_s * S, "", (), 0.0) for age_s in (0, 2))
    assert first == pytest.approx(0.5 / S, rel=0.15), "half of them end in a second"
    assert later == pytest.approx(1 / (98 * S), rel=0.15)


# Of a program


def program(**fields: object) -> Program:
    values = {"program_id": "p", "turn_index": 1, "gap_since_ns": 1000 * S, "gap_tool": "bash"} | fields
    return Program(**values)  # type: ignore[arg-type]


def test_who_has_a_tool_or_a_turn_open_comes_back() -> None:
    late_ns = 100_000 * S
    assert Estimates().chance_of_return(program(open_tools=1), late_ns) == 1.0
    assert Estimates().chance_of_return(program(gap_since_ns=0), late_ns) == 1.0
    assert Estimates().return_rate(program(gap_since_ns=0), late_ns) == 1.0


# Whatever was seen

ages = st.integers(0, seconds(100_000))
histories = st.lists(st.tuples(st.sampled_from(["", "bash", "search"]), st.integers(1, seconds(9000))), max_size=60)
own = st.lists(st.integers(0, seconds(9000)), max_size=8)
tools = st.sampled_from(["", "bash", "search", "other"])


def of(history: list[tuple[str, int]]) -> Gaps:
    gaps = Gaps()
    for tool, gap_ns in history:
        gaps.add(tool, gap_ns)
    return gaps


@given(histories, own, tools, st.lists(ages, min_size=2), st.floats(0, 1))
def test_the_chance_of_a_return_never_rises_with_silence(
    history: list[tuple[str, int]], own_ns: list[int], tool: str, silences: list[int], end_ratio: float
) -> None:
    gaps = of(history)
    shares = [max(gaps.survival_probability(age, tool, own_ns), gaps.tail(age, tool)) for age in sorted(silences)]
    chances = [return_probability(share, end_ratio) for share in shares]
    assert all(0 <= chance <= 1 for chance in chances)
    assert all(later <= earlier for earlier, later in pairwise(chances))


@given(histories, own, tools, ages, st.floats(0, 1))
def test_what_may_be_left_of_a_gap_weighs_as_much_as_the_gaps_that_last(
    history: list[tuple[str, int]], own_ns: list[int], tool: str, age: int, end_ratio: float
) -> None:
    gaps = of(history)
    left = gaps._left(age, tool, own_ns)
    assert all(left_ns > 0 and weight >= 0 for left_ns, weight in left)
    assert sum(weight for _, weight in left) == pytest.approx(gaps.survival_probability(age, tool, own_ns))
    rate = gaps.rate(age, tool, own_ns, end_ratio)
    assert 0 <= rate <= 1.0001 / min(left_ns for left_ns, _ in left), "nothing ends sooner than the soonest"
