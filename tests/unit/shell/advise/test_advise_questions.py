"""What the laboratory tells is read as an answer, and nonsense is told as such."""

from math import isnan
from typing import Any

import msgspec
import pytest

from controlplane.core.errors import EngineUnavailable
from controlplane.core.tuning import Forecast
from controlplane.shell.advise import answer_of

TOLD: dict[str, Any] = {
    "format": 1,
    "goal": "mean_jct_s",
    "stretch": {"since_s": 0.0, "until_s": 600.0, "programs": 38},
    "actual": {"preset": "fcfs", "mean_jct_s": 50.0, "hit_rate": None},
    "replayed": {"preset": "fcfs", "mean_jct_s": 52.0, "hit_rate": None},
    "candidates": [
        {
            "settings": ["admission.window=12"],
            "advised": True,
            "change": {
                "mean_jct_s": {"value": -0.2, "low": -0.3, "high": -0.1},
                "hit_rate": {"value": None, "low": None, "high": None},
            },
            "alternative": {"preset": "fcfs", "mean_jct_s": 41.6},
        }
    ],
}


def test_an_answer_has_the_goals_figures() -> None:
    answer = answer_of(msgspec.json.encode(TOLD), "mean_jct_s", 7)
    assert (answer.number, answer.measured, answer.replayed, answer.programs) == (7, 50.0, 52.0, 38)
    assert answer.forecasts == (
        Forecast(
            key="admission.window", value=12.0, figure=41.6, change=-0.2, low=-0.3, high=-0.1, is_advised=True
        ),
    )


def test_a_figure_that_nothing_was_measured_for_is_none() -> None:
    answer = answer_of(msgspec.json.encode(TOLD), "hit_rate", 7)
    assert isnan(answer.measured)
    assert answer.forecasts == ()


def test_without_a_candidate_there_is_a_reason() -> None:
    told = msgspec.json.encode({**TOLD, "candidates": []})
    assert "no step" in answer_of(told, "mean_jct_s", 7).reason


@pytest.mark.parametrize("text", [b"{", b"[]", msgspec.json.encode({**TOLD, "format": 2})])
def test_what_is_not_understood_is_told(text: bytes) -> None:
    with pytest.raises(EngineUnavailable, match=r"not understood|format 2, not 1"):
        answer_of(text, "mean_jct_s", 7)
