"""What clients tell of themselves beside their program's id and their requests: a dimension of every trial.

Most clients of a real node have no adapter. A policy that was only tried with agents that report every tool was not
tried. Which kind of agent asks is in each request, as the tools and instructions that it offers.
"""

from dataclasses import dataclass
from enum import StrEnum
from zlib import crc32

from controlplane.lab.workload.trace_lines import THINK_TIME, Turn


class Telemetry(StrEnum):
    """How much of the runs is told."""

    NONE = "none"  # the program's id with each request, and nothing else: no tools, no goodbye
    TURNS = "turns"  # what can be read from replies, too: which tool each calls, and that the last calls none
    HALF = "half"  # a mix of agents: every second program as in ``full``, the others as in ``none``
    RUNS = "runs"  # as in ``full``, but nobody tells whose sub-agent a run is
    FULL = "full"  # an adapter reports the run's beginning and end, and each tool's


@dataclass(frozen=True, slots=True)
class Reporting:
    """What one program tells."""

    run: bool  # its beginning, its end, and its tools
    replies: bool  # its replies say which tool they call
    parent: bool = False  # whose sub-agent it is


def reported(telemetry: Telemetry, program_id: str) -> Reporting:
    """What the program of that name tells: a program is of one kind, whatever else runs.

    A sub-agent's is told by the name of its root.
    """
    full = telemetry is Telemetry.FULL or (telemetry is Telemetry.HALF and crc32(program_id.encode()) % 2 == 0)
    return Reporting(run=full or telemetry is Telemetry.RUNS, replies=telemetry is Telemetry.TURNS, parent=full)


def reply_calls(turn: Turn, *, is_last: bool) -> tuple[str, int]:
    """The tool that the turn's reply calls, and how many calls it has; -1: the trace does not say."""
    if is_last or turn.tool == THINK_TIME:
        return "", 0
    return turn.tool, 1 if turn.tool else -1
