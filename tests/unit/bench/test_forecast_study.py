"""The study of the forecast, on a corner of it."""

import forecast
import pytest


def test_ranks_are_compared_and_ties_share_theirs() -> None:
    assert forecast.ranks([30.0, 10.0, 10.0]) == [2, 0.5, 0.5]
    assert forecast.correlation([1, 2, 3], [10, 200, 3000]) == pytest.approx(1)
    assert forecast.correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert forecast.correlation([1, 1, 1], [3, 2, 1]) == 0


def test_kinds_that_differ_are_told_apart_by_their_requests_alone(capsys: pytest.CaptureFixture[str]) -> None:
    forecast.table("synthetic:five-kinds", programs=60, seeds=[1])
    _, head, first, *_ = capsys.readouterr().out.splitlines()
    found = dict(zip(head.split(), map(float, first.split()), strict=False))
    assert (found["turn"], found["programs"]) == (0, 48)
    assert found["rank"] > 0.4
