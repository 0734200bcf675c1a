"""Asks the laboratory, which the product never imports: a command of the same installation that answers in JSON.

It replays a stretch of what the daemon heard, in a process with the least claim on the machine that ends with us.
"""

import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from anyio import fail_after, run_process, to_thread

from controlplane.core.errors import EngineUnavailable
from controlplane.shell.stretch import Stretch, join

CPU_SHARE = 0.2  # of one CPU, at most: who took so many CPU seconds is asked again no sooner than five times later
_MOST_CPU_S = 300
_WITHIN_S = 1200.0


async def ask(stretch: Stretch, command: Sequence[str], options: Sequence[str]) -> bytes:
    """What ``command LOG OPTIONS --json`` prints of the stretch. Raises ``EngineUnavailable`` with the reason."""
    name = f"penstock {command[-1]}"
    if stretch.failed:
        raise EngineUnavailable(f"what happens is not written down: {stretch.failed}")
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-stretch-") as folder, fail_after(_WITHIN_S):
            log = Path(folder) / "stretch.jsonl"
            await to_thread.run_sync(join, stretch.pieces(), log)
            done = await run_process(
                [*niced(), *command, str(log), *options, "--json"],
                check=False,
                env=os.environ | {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"},
            )
    except (OSError, TimeoutError) as error:
        raise EngineUnavailable(f"{name}: {error or f'no answer in {_WITHIN_S:g}s'}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise EngineUnavailable(said[-1] if said else f"{name} ended with {done.returncode}")
    return done.stdout


def niced() -> list[str]:
    """The command that becomes another one, which has the least claim and ends with us."""
    return [sys.executable, "-m", "controlplane.shell.shadow.child", str(_MOST_CPU_S)]


def children_cpu_s() -> float:
    """CPU seconds of children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
