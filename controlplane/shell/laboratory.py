"""Asks the laboratory, which the product never imports: a command of the same installation that answers in JSON.

It replays a stretch of what the daemon heard, one at a time, in a process with little claim on the machine that
ends with us.
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
from subprocess import DEVNULL, CompletedProcess

from anyio import CancelScope, Lock, create_task_group, fail_after, open_process, to_thread
from anyio.abc import ByteReceiveStream

from controlplane.shell.stretch import Stretch, join

CPU_SHARE = 0.2  # of one CPU, at most: who took so many CPU seconds is asked again no sooner than five times later
_MOST_CPU_S = 300
_WITHIN_S = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the command printed, or the reason why it told nothing; and the CPU seconds that it took."""

    text: bytes = b""
    reason: str = ""
    cpu_s: float = 0.0


class Laboratory:
    """Whoever asks while another question is under way waits for its end."""

    def __init__(self) -> None:
        self._one = Lock()

    async def ask(
        self, log: Path, command: Sequence[str], options: Sequence[str], *, begun: Callable[[], None] = lambda: None
    ) -> Told:
        """What ``command LOG OPTIONS --json`` prints; ``begun`` is called once nobody else's question is under way.

        Being cancelled ends the process as well. Raises nothing.
        """
        async with self._one:
            begun()
            before_s = _children_cpu_s()
            text, reason = await self._run(log, command, options)
            return Told(text=text, reason=reason, cpu_s=_children_cpu_s() - before_s)

    async def _run(self, log: Path, command: Sequence[str], options: Sequence[str]) -> tuple[bytes, str]:
        name = f"penstock {command[-1]}"
        try:
            with fail_after(_WITHIN_S):
                done = await _ended([*niced(), *command, str(log), *options, "--json"])
        except (OSError, TimeoutError) as error:
            return b"", f"{name}: {error or f'no answer in {_WITHIN_S:g}s'}"
        if not done.returncode:
            return done.stdout, ""
        if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            return b"", f"{name} took more than {_MOST_CPU_S} s of CPU time: ask about a shorter stretch"
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return b"", said[-1] if said else f"{name} ended with {done.returncode}"


async def _ended(command: Sequence[str]) -> CompletedProcess[bytes]:
    """As ``anyio.run_process``, which loses a process that has begun, and is not known yet, as it is cancelled."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    with CancelScope(shield=True):
        process = await open_process(command, stdin=DEVNULL, env=environment)
    said = {}

    async def read(name: str, stream: ByteReceiveStream | None) -> None:
        assert stream is not None
        said[name] = b"".join([piece async for piece in stream])

    async with process, create_task_group() as group:
        group.start_soon(read, "stdout", process.stdout)
        group.start_soon(read, "stderr", process.stderr)
        await process.wait()
    return CompletedProcess(command, process.returncode or 0, said["stdout"], said["stderr"])


@asynccontextmanager
async def joined(stretch: Stretch) -> AsyncIterator[Path]:
    """The pieces of a stretch as one log, as long as the block lasts. Raises ``OSError``."""
    pieces = stretch.pieces()
    await to_thread.run_sync(stretch.settle)
    with tempfile.TemporaryDirectory(prefix="penstock-replay-") as folder:
        log = Path(folder) / "stretch.jsonl"
        await to_thread.run_sync(join, pieces, log)
        yield log


def niced() -> list[str]:
    """The command that becomes another one, which has little claim and ends with us."""
    return [sys.executable, "-m", "controlplane.shell.niced", str(_MOST_CPU_S)]


def _children_cpu_s() -> float:
    """CPU seconds of children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
