"""What gaps say of a silence: how many last longer, how soon one is likely to end, and who comes back."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.estimators.idle_gaps import Gaps
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


# Ends that prove false

_END_BELOW, _TURNS = 0.03, 12
Draw = Callable[[random.Random, float], float]
CLIENTS: dict[str, tuple[Draw, float]] = {  # a gap, in s, at this share of the run; h over what it is
    "as is believed": (lambda r, _: r.expovariate(0.2), 1.0),
    "one gap in twenty takes minutes": (lambda r, _: r.uniform(100, 900) if r.random() < 0.05 else 2.0, 1.0),
    "programs live longer than is believed": (lambda r, _: r.lognormvariate(1, 1.5), 4.0),
    "gaps become longer and longer": (lambda r, at: r.expovariate(0.2) * 30**at, 2.0),
}


def ends_of(draw: Draw, h_ratio: float, programs: int = 300) -> tuple[int, int, float]:
    """Programs of which nothing is known but their gaps: how many silences were taken for ends, how many of those
    were not, and the doubt.
    """
    gaps, h, r = Gaps(), 1 / (_TURNS + 1), random.Random(1)
    taken = false = 0
    for number in range(programs):
        over, own = False, tuple[int, ...]()
        while not over:
            over = r.random() < h
            gap_ns, silent_ns, chance = 10**18 if over else seconds(draw(r, number / programs)), S, 1.0
            while silent_ns < gap_ns and chance >= _END_BELOW:
                silent_ns = round(silent_ns * 1.05)
                chance = gaps.return_probability(gaps.survival_probability(silent_ns, "", own), h * h_ratio)
            if silent_ns < gap_ns:
                gaps.took_for_ended(chance)
                taken += 1
                if not over:
                    gaps.came_back()
                    false += 1
            if not over:
                gaps.add("", gap_ns)
                own = (*own[-3:], gap_ns)
    return taken, false, gaps.doubt


@pytest.mark.parametrize(("draw", "h_ratio"), CLIENTS.values(), ids=CLIENTS)
def test_of_ends_that_silence_tells_hardly_more_prove_false_than_are_said_to(draw: Draw, h_ratio: float) -> None:
    taken, false, doubt = ends_of(draw, h_ratio)
    assert false <= _END_BELOW * taken + 2 * doubt, "what the doubt stands for is half of those beyond"
    assert false <= 0.06 * taken, "14% and 19% of the last two without it"


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
    chances = [gaps.return_probability(share, end_ratio) for share in shares]
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
