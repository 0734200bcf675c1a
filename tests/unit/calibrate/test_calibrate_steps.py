"""A step's time is read from replies that were being written at once, and only from those."""

import pytest

from controlplane.lab.calibrate.measure import step_seconds


def reply(began_s: float, step_s: float, tokens: int = 64) -> list[tuple[float, int]]:
    return [(began_s + step_s * written, 1 + written) for written in range(tokens)]


def test_the_time_is_of_what_overlaps() -> None:
    assert step_seconds([reply(0.0, 0.01)]) == pytest.approx(0.01)
    assert step_seconds([reply(0.0, 0.01), reply(0.1, 0.01)]) == pytest.approx(0.01)


@pytest.mark.parametrize(
    "replies",
    [
        pytest.param([reply(0.0, 0.001), reply(1.0, 0.001)], id="one after the other"),
        pytest.param([reply(0.0, 0.01), []], id="one said nothing"),
        pytest.param([[(0.5, 64)]], id="all in one piece"),
        pytest.param([[(0.5, 64), (0.6, 64)]], id="the end said twice"),
        pytest.param([[(0.5, 1), (0.5, 64)]], id="all read at once"),
    ],
)
def test_replies_that_never_were_written_together_tell_nothing(replies: list[list[tuple[float, int]]]) -> None:
    assert step_seconds(replies) is None
