"""Asks ``penstock what-if``, which the product never imports: a process with little claim that ends with us."""

import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, CompletedProcess

import msgspec
from anyio import CancelScope, create_task_group, fail_after, open_process
from anyio.abc import ByteReceiveStream

from controlplane.daemon.process.exec_bound import ends_with_us

WHAT_IF = (sys.executable, "-m", "controlplane", "what-if")
_FORMAT = 1
_MOST_CPU_S = 300
_WITHIN_S = 1200.0


class Interval(msgspec.Struct, frozen=True):
    """A change with its 95% interval; None: not known."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


class WhatIfAnswer(msgspec.Struct, frozen=True):
    """What an estimate needs of the answer: fields of ``penstock what-if --json``."""

    format: int
    stretch: dict[str, float]
    expected: dict[str, Interval] = {}  # of one run, which holds what the replay itself is off by
    replay_error: dict[str, float | None] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of one replay: an answer, or the reason why there is none; and the CPU seconds that it took."""

    answer: WhatIfAnswer | None = None
    reason: str = ""
    cpu_s: float = 0.0


async def replay(log: Path, options: Sequence[str], command: Sequence[str] = WHAT_IF) -> Replayed:
    """The answer of ``command LOG OPTIONS --json``. Being cancelled ends the process as well. Raises nothing."""
    before_s = _children_cpu_s()
    text, reason = await _run([*command, str(log), *options, "--json"], f"penstock {command[-1]}")
    answer, reason = (None, reason) if reason else _read(text)
    return Replayed(answer=answer, reason=reason, cpu_s=_children_cpu_s() - before_s)


async def _run(command: Sequence[str], name: str) -> tuple[bytes, str]:
    try:
        with fail_after(_WITHIN_S):
            done = await _ended([*ends_with_us(cpu_s=_MOST_CPU_S), *command])
    except (OSError, TimeoutError) as error:
        return b"", f"{name}: {error or f'no answer in {_WITHIN_S:g}s'}"
    if not done.returncode:
        return done.stdout, ""
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return b"", f"{name} took more than {_MOST_CPU_S} s of CPU time: make the stretch shorter"
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return b"", lines[-1] if lines else f"{name} ended with {done.returncode}"


async def _ended(command: Sequence[str]) -> CompletedProcess[bytes]:
    """As ``anyio.run_process``, which loses a process that has begun, and is not known yet, as it is cancelled."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    with CancelScope(shield=True):
        process = await open_process(command, stdin=DEVNULL, env=environment)
    output = {}

    async def read(name: str, stream: ByteReceiveStream | None) -> None:
        assert stream is not None
        output[name] = b"".join([piece async for piece in stream])

    async with process, create_task_group() as group:
        group.start_soon(read, "stdout", process.stdout)
        group.start_soon(read, "stderr", process.stderr)
        await process.wait()
    return CompletedProcess(command, process.returncode or 0, output["stdout"], output["stderr"])


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _read(text: bytes) -> tuple[WhatIfAnswer | None, str]:
    try:
        answer = msgspec.json.decode(text, type=WhatIfAnswer)
    except msgspec.DecodeError as error:
        return None, f"penstock what-if told what is not understood: {error}"
    if answer.format != _FORMAT:
        return None, f"penstock what-if told format {answer.format}, not {_FORMAT}"
    return answer, ""
