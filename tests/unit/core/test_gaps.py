"""What gaps say of a silence: how many last longer, how soon one is likely to end, and who comes back."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core import gaps as module
from controlplane.core.estimate import Estimates
from controlplane.core.gaps import Gaps, returning
from controlplane.core.types import Program, seconds

S = seconds(1)


def seen(*gaps_s: float, tool: str = "") -> Gaps:
    gaps = Gaps()
    for gap_s in gaps_s:
        gaps.add(tool, seconds(gap_s))
    return gaps


def test_a_gap_is_counted_among_its_tools_and_among_all() -> None:
    gaps = seen(3, 1, tool="bash")
    gaps.add("", 2 * S)
    assert (gaps.of("bash"), gaps.of(""), gaps.of("never seen")) == ([1 * S, 3 * S], [1 * S, 2 * S, 3 * S], ())


def test_names_are_bounded_and_the_rest_is_learned_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_TOOLS", 2)
    gaps = Gaps()
    for tool in ("first", "second", "first"):
        gaps.add(tool, S)
    assert (len(gaps.of("first")), len(gaps.of("second")), len(gaps.of(""))) == (2, 0, 3)


# S, the share of gaps that last longer


def test_before_anything_is_seen_half_of_the_gaps_are_supposed_to_last_ten_seconds() -> None:
    assert Gaps().outlasting(0, "", ()) == 1.0
    assert Gaps().outlasting(10 * S, "", ()) == pytest.approx(0.5)
    assert Gaps().outlasting(990 * S, "", ()) == pytest.approx(0.01)


def test_what_was_seen_of_all_outweighs_the_guess() -> None:
    """After 10 s: two of four last longer, and two more are supposed to be half as the guess says."""
    assert seen(1, 2, 20, 30).outlasting(10 * S, "", ()) == pytest.approx((2 + 2 * 0.5) / (4 + 2))


def test_a_programs_own_gaps_outweigh_those_of_all() -> None:
    gaps = seen(1, 2, 20, 30)
    of_all = gaps.outlasting(10 * S, "", ())
    assert gaps.outlasting(10 * S, "", [60 * S] * 4) == pytest.approx((4 + 8 * of_all) / (4 + 8))


def test_a_tools_gaps_outweigh_both() -> None:
    gaps = seen(1, 2, 20, 30)
    gaps.add("pytest", 60 * S)
    before = gaps.outlasting(10 * S, "", [5 * S])
    assert gaps.outlasting(10 * S, "pytest", [5 * S]) == pytest.approx((1 + 2 * before) / (1 + 2))
    assert gaps.outlasting(10 * S, "never seen", [5 * S]) == pytest.approx(before)


# P(it comes back)


def test_of_silent_programs_those_have_ended_whose_gap_would_be_over() -> None:
    """One in ten ends with a turn. Half of the gaps last longer: 0.45 of all go on in silence, 0.1 have ended."""
    assert returning(0.5, 0.1) == pytest.approx(0.45 / 0.55)
    assert returning(0.0, 0.1) == 0.0
    assert returning(1e-9, 0.0) == 1.0, "where nobody ends, everybody comes back"


# The rate


def test_the_rate_is_that_of_the_time_which_is_worth_waiting_for() -> None:
    """Very many gaps of 1 s, as many of 100 s: then only those are left. A dozen points stand for all."""
    gaps = seen(*[1, 100] * 100)
    first, later = (gaps.rate(age_s * S, "", (), 0.0) for age_s in (0, 2))
    assert first == pytest.approx(0.5 / S, rel=0.15), "half of them end in a second"
    assert later == pytest.approx(1 / (98 * S), rel=0.15)


def test_who_may_have_ended_comes_back_at_a_lower_rate() -> None:
    gaps = seen(*[1] * 100)
    assert gaps.rate(0, "", (), 0.5) == pytest.approx(0.5 * gaps.rate(0, "", (), 0.0), rel=0.05)
    assert gaps.rate(0, "", (), 1.0) == 0.0


# Of a program


def program(**fields: object) -> Program:
    values = {"program_id": "p", "turn_index": 1, "gap_since_ns": 1000 * S, "gap_tool": "bash"} | fields
    return Program(**values)  # type: ignore[arg-type]


def test_who_has_a_tool_or_a_turn_open_comes_back() -> None:
    late_ns = 100_000 * S
    assert Estimates().chance_of_return(program(open_tools=1), late_ns) == 1.0
    assert Estimates().chance_of_return(program(gap_since_ns=0), late_ns) == 1.0
    assert Estimates().return_rate(program(gap_since_ns=0), late_ns) == 1.0


def test_a_reply_that_called_a_tool_is_hardly_ever_the_last() -> None:
    estimates = Estimates()
    assert estimates.end_ratio(program()) == estimates.end_ratio(program(gap_tool="", open_tools=1)) == 0.01
    assert estimates.end_ratio(program(gap_tool="")) == pytest.approx(1 / (1 + 10)), "ten turns are supposed"


def test_the_gap_that_lasts_is_none_of_those_that_ended() -> None:
    """Of the last cycle only the turn is over; counted as a gap of no length it would say that gaps are short."""
    estimates, now_ns = Estimates(), 1010 * S
    acting = program(cycles=(5 * S, 7 * S, 5 * S, 0), phase_since_ns=1000 * S)
    over = program(cycles=(5 * S, 7 * S))
    assert estimates.chance_of_return(acting, now_ns) == estimates.chance_of_return(over, now_ns)
    assert estimates.return_rate(acting, now_ns) == estimates.return_rate(over, now_ns)
    first = program(cycles=(5 * S, 0), phase_since_ns=1000 * S)
    assert estimates.chance_of_return(first, now_ns) == estimates.chance_of_return(program(), now_ns)


@pytest.mark.parametrize("gaps_seen", [40, 100, 200])
def test_a_tool_that_outlasts_all_that_was_seen_of_it_is_not_the_end(gaps_seen: int) -> None:
    gaps = seen(*[1, 5, 20, 25, 30] * (gaps_seen // 5), tool="shell")
    assert returning(gaps.outlasting(200 * S, "shell", [10 * S] * 5), 0.01) < 0.03, "level by level it vanishes"
    assert returning(gaps.tail(200 * S, "shell"), 0.01) > 0.03
    assert returning(gaps.tail(8000 * S, "shell"), 0.01) < 0.03, "in the end it is"
    assert gaps.tail(29 * S, "shell") == gaps.tail(200 * S, "") == gaps.tail(200 * S, "other") == 0


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
    shares = [max(gaps.outlasting(age, tool, own_ns), gaps.tail(age, tool)) for age in sorted(silences)]
    chances = [returning(share, end_ratio) for share in shares]
    assert all(0 <= chance <= 1 for chance in chances)
    assert all(later <= earlier for earlier, later in pairwise(chances))


@given(histories, own, tools, ages, st.floats(0, 1))
def test_what_may_be_left_of_a_gap_weighs_as_much_as_the_gaps_that_last(
    history: list[tuple[str, int]], own_ns: list[int], tool: str, age: int, end_ratio: float
) -> None:
    gaps = of(history)
    left = gaps._left(age, tool, own_ns)
    assert all(left_ns > 0 and weight >= 0 for left_ns, weight in left)
    assert sum(weight for _, weight in left) == pytest.approx(gaps.outlasting(age, tool, own_ns))
    rate = gaps.rate(age, tool, own_ns, end_ratio)
    assert 0 <= rate <= 1.0001 / min(left_ns for left_ns, _ in left), "nothing ends sooner than the soonest"
