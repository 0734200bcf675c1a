"""What it costs to have a context back is learned from the turns that came back."""

import pytest

from controlplane.core.prefill_cost import Displaced


def test_nothing_is_known_before_somebody_came_back() -> None:
    nothing = Displaced()
    assert (nothing.kept_ratio, nothing.load_ratio) == (0.0, 1.0)


def test_what_was_computed_again_was_not_kept() -> None:
    seen = Displaced()
    seen.add(1000, 0, 0, 0)
    assert (seen.kept_ratio, seen.load_ratio) == (0.0, 1.0)


def test_loads_are_weighed_by_their_tokens_and_cost_no_more_than_computing() -> None:
    seen = Displaced()
    seen.add(100, 300, 30, 300)
    assert (seen.kept_ratio, seen.load_ratio) == (0.75, pytest.approx(0.1))
    seen.add(0, 300, 9000, 300)
    assert seen.load_ratio == 1.0


def test_older_turns_fade() -> None:
    seen = Displaced()
    for _ in range(200):
        seen.add(1000, 0, 0, 0)
    for _ in range(200):
        seen.add(0, 1000, 100, 1000)
    assert seen.kept_ratio > 0.98
