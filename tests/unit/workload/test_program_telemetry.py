"""What clients tell of themselves."""

import pytest

from controlplane.lab.workload.telemetry import Telemetry, reply_calls, reported
from controlplane.lab.workload.trace import Turn


def test_what_a_program_tells() -> None:
    told = {each: (reported(each, "p").run, reported(each, "p").replies) for each in Telemetry if each != "half"}
    assert told == {"none": (False, False), "turns": (False, True), "runs": (True, False), "full": (True, False)}
    half = [reported(Telemetry.HALF, f"p{n}").run for n in range(400)]
    assert 150 < sum(half) < 250
    assert half == [reported(Telemetry.HALF, f"p{n}").run for n in range(400)]


@pytest.mark.parametrize(
    ("tool", "is_last", "called"),
    [("bash", False, ("bash", 1)), ("bash", True, ("", 0)), ("human", False, ("", 0)), ("", False, ("", -1))],
)
def test_what_a_reply_calls(tool: str, is_last: bool, called: tuple[str, int]) -> None:
    assert reply_calls(Turn(input_tokens=9, output_tokens=1, tool=tool, tool_ms=5.0), is_last=is_last) == called
