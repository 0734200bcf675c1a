"""One word a thing in what operators read, whatever the wire calls it."""

import pytest

from controlplane.operate import tables
from controlplane.wire.control import Fields


def forecast(ended: int, missed: float, kind: str = "") -> Fields:
    return Fields(kind=kind, ended=ended, expected_ratio=0.5, missed_ratio=missed)


def test_what_an_operator_holds_and_what_waits_at_the_gate_are_told_apart() -> None:
    program = Fields(
        program_id="p",
        held_by_operator=True,
        status="waiting",
        queue_position=1,
        phase="held",
        tool="",
        turns=1,
        context_tokens=0,
        kv_tier="none",
        idle_ns=0,
        hold_ns=61_000_000_000,
        retained_ns=0,
        idleness_ratio=0.0,
    )
    row = dict(zip(tables.program_head(engines=False), tables.program_row(program, engines=False), strict=True))
    assert row["program"] == "p (on hold)"
    assert (row["phase"], row["waited"]) == ("waiting", "1m01s")
    assert tables.orders_line(Fields(held=["p"], draining=False)) == "on hold by operator: p"


@pytest.mark.parametrize(
    ("limit", "window", "words"), [(0, 0.0, "no limit"), (12, 12.3, "12"), (4, 12.3, "4 of 12.3"), (1, 0.5, "1")]
)
def test_a_window_says_of_how_much_a_cap_leaves_how_much(limit: int, window: float, words: str) -> None:
    assert tables.window_words(limit, window) == words


def test_forecasts_of_a_few_programs_are_not_judged_and_large_errors_are_told_in_times() -> None:
    assert tables.forecast_line([forecast(19, 31.5)]) == "too few to judge (19 of 20 programs have ended)"
    said = tables.forecast_line(
        [forecast(60, 31.5), forecast(30, 0.4, "a"), forecast(25, 2.0, "b"), forecast(5, 9, "c")]
    )
    assert "off by 31.5 times it" in said
    assert "worst class b: 0.50 times, off by 2.0 times it" in said
