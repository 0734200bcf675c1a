"""Asks ``penstock what-if``, and reads its answer."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from controlplane.shell.laboratory import Laboratory

WHAT_IF = (sys.executable, "-m", "controlplane", "what-if")
_FORMAT = 1


class Interval(msgspec.Struct, frozen=True):
    """A change with its 95% interval; None: not known."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


class Answer(msgspec.Struct, frozen=True):
    """What of the answer is told on: its fields are those of ``penstock what-if --json``."""

    format: int
    stretch: dict[str, float]
    change: dict[str, Interval] = {}
    expected: dict[str, Interval] = {}  # of one run, which holds what the replay itself is off by
    replay_error: dict[str, float | None] = {}
    question: str = ""
    actual: dict[str, float | str | None] = {}
    replayed: dict[str, float | str | None] = {}
    alternative: dict[str, float | str | None] = {}
    predicted: dict[str, float | str | None] = {}
    calibration: dict[str, float] = {}
    notes: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of one replay: an answer, or the reason why there is none; and the CPU seconds that it took."""

    answer: Answer | None = None
    reason: str = ""
    cpu_s: float = 0.0


class Replayer:
    """Replays event logs in ``laboratory``, where others may ask, too; without one in its own."""

    def __init__(self, command: Sequence[str] = WHAT_IF, laboratory: Laboratory | None = None) -> None:
        self._command = command
        self._laboratory = laboratory or Laboratory()

    async def replay(
        self, log: Path, options: Sequence[str], *, begun: Callable[[], None] = lambda: None
    ) -> Replayed:
        """Ask about that event log; ``begun`` is called once nobody else's replay is under way.

        Being cancelled ends the process as well. Raises nothing.
        """
        told = await self._laboratory.ask(log, self._command, options, begun=begun)
        answer, reason = (None, told.reason) if told.reason else _read(told.text)
        return Replayed(answer=answer, reason=reason, cpu_s=told.cpu_s)


def _read(text: bytes) -> tuple[Answer | None, str]:
    try:
        answer = msgspec.json.decode(text, type=Answer)
    except msgspec.DecodeError as error:
        return None, f"penstock what-if told what is not understood: {error}"
    if answer.format != _FORMAT:
        return None, f"penstock what-if told format {answer.format}, not {_FORMAT}"
    return answer, ""
