"""Asks ``penstock what-if`` in a process of its own: one at a time, with the least claim on the machine, bounded.

It belongs to the laboratory, which nothing of the product imports, so that it is begun as a command. Its answer is
JSON.
"""

import os
import resource
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from anyio import Lock, fail_after, run_process, to_thread

from controlplane.shell.shadow.stretch import join

WHAT_IF = (sys.executable, "-m", "controlplane", "what-if")
_MOST_CPU_S = 300
_WITHIN_S = 1200.0
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
    change: dict[str, Interval]
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
    """Whoever asks while another replay is under way waits for its end."""

    def __init__(self, command: Sequence[str] = WHAT_IF) -> None:
        self._command = command
        self._one = Lock()

    async def replay(
        self, log: Path, options: Sequence[str], *, begun: Callable[[], None] = lambda: None
    ) -> Replayed:
        """Ask about that event log; ``begun`` is called once nobody else's replay is under way.

        Being cancelled ends the process as well. Raises nothing.
        """
        async with self._one:
            begun()
            before_s = _children_cpu_s()
            answer, reason = await self._ask(log, options)
            return Replayed(answer=answer, reason=reason, cpu_s=_children_cpu_s() - before_s)

    async def _ask(self, log: Path, options: Sequence[str]) -> tuple[Answer | None, str]:
        try:
            with fail_after(_WITHIN_S):
                done = await run_process(
                    [*niced(), *self._command, str(log), *options, "--json"],
                    check=False,
                    env=os.environ | {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"},
                )
        except (OSError, TimeoutError) as error:
            return None, f"penstock what-if: {error or f'no answer in {_WITHIN_S:g}s'}"
        if not done.returncode:
            return _read(done.stdout)
        if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            return None, f"penstock what-if took more than {_MOST_CPU_S} s of CPU time: ask about a shorter stretch"
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return None, said[-1] if said else f"penstock what-if ended with {done.returncode}"


@asynccontextmanager
async def joined(pieces: Sequence[Path]) -> AsyncIterator[Path]:
    """The pieces of a stretch as one log, as long as the block lasts. Raises ``OSError``."""
    with tempfile.TemporaryDirectory(prefix="penstock-replay-") as folder:
        log = Path(folder) / "stretch.jsonl"
        await to_thread.run_sync(join, pieces, log)
        yield log


def niced() -> list[str]:
    """The command that becomes another one, which has the least claim and ends with us."""
    return [sys.executable, "-m", "controlplane.shell.shadow.child", str(_MOST_CPU_S)]


def _read(text: bytes) -> tuple[Answer | None, str]:
    try:
        answer = msgspec.json.decode(text, type=Answer)
    except msgspec.DecodeError as error:
        return None, f"penstock what-if told what is not understood: {error}"
    if answer.format != _FORMAT:
        return None, f"penstock what-if told format {answer.format}, not {_FORMAT}"
    return answer, ""


def _children_cpu_s() -> float:
    """CPU seconds of children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
