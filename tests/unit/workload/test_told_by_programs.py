"""What clients tell of themselves."""

import pytest

from controlplane.lab.workload.telemetry import Telemetry, reply_calls, told
from controlplane.lab.workload.trace import Turn


def test_half_of_the_programs_report_and_each_is_of_one_kind():
    names = [f"p{n}" for n in range(400)]
    reporting = [name for name in names if told(Telemetry.HALF, name).run]
    assert 150 < len(reporting) < 250
    assert reporting == [name for name in names if told(Telemetry.HALF, name).run]


@pytest.mark.parametrize(
    ("telemetry", "run", "replies"), [("none", False, False), ("turns", False, True), ("full", True, False)]
)
def test_what_a_program_tells(telemetry, run, replies):
    assert (told(Telemetry(telemetry), "p").run, told(Telemetry(telemetry), "p").replies) == (run, replies)


@pytest.mark.parametrize(
    ("tool", "is_last", "called"),
    [("bash", False, ("bash", 1)), ("bash", True, ("", 0)), ("human", False, ("", 0)), ("", False, ("", -1))],
)
def test_what_a_reply_calls(tool, is_last, called):
    assert reply_calls(Turn(input_tokens=9, output_tokens=1, tool=tool, tool_ms=5.0), is_last=is_last) == called
