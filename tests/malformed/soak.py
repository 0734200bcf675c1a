"""``python -m tests.malformed --inputs 1000000``: almost right bytes for everything that reads from outside.

Over the bus, the socket, HTTP and gRPC to real processes; configurations, traces, event logs and snapshots as
files. Exits with 1 when a process ended, an answer took too long, or a reader raised anything but its own error.
"""

# ruff: noqa: T201 - what a command prints

import asyncio
import inspect
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from support.daemon_process import NODE, says
from support.whole_loop import Loop

from . import doors

MOST_ANSWER_S = 10.0
MOST_GROWTH = 2.0  # of a process's peak memory over what it had when it was warm


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


async def run(inputs: int, seed: int, folder: Path) -> int:
    random = Random(seed)
    loop = Loop(folder, "penstock")
    try:
        loop.start()
        return await _attack(loop, inputs, random, seed, folder)
    finally:
        loop.stop()


async def _attack(loop: Loop, inputs: int, random: Random, seed: int, folder: Path) -> int:
    result = await asyncio.to_thread(loop.run, 5)  # warm, and there is a record to damage
    assert result.summary.programs_failed == 0
    await says(loop.daemon, '"listening"')
    assert loop.daemon.process is not None
    assert loop.double is not None
    pids = {"daemon": loop.daemon.process.pid, "engine double": loop.double.pid}
    before = {name: _peak_mb(pid) for name, pid in pids.items()}
    where = urllib.parse.urlsplit(loop.url)
    recorded = (folder / "run.jsonl").read_bytes()
    asked: dict[str, tuple[float, Callable[[int], Any]]] = {
        "bus": (0.4, lambda count: doors.bus(random, count, NODE, folder)),
        "commands and heartbeats": (0.2, lambda count: doors.words(random, count, NODE)),
        "socket": (0.05, lambda count: doors.socket(random, count, NODE, folder)),
        "HTTP": (0.03, lambda count: doors.http(random, count, where.hostname or "", where.port or 0)),
        "gRPC": (0.02, lambda count: doors.control(random, count, NODE, folder)),
        "configurations": (0.1, lambda count: doors.configurations(random, count, folder)),
        "traces": (0.1, lambda count: doors.traces(random, count, folder)),
        "event logs": (0.05, lambda count: doors.logs(random, count, folder, recorded)),
        "snapshots": (0.05, lambda count: doors.snapshots(random, count, folder)),
    }
    began_s, total, failed = time.monotonic(), 0, False
    for name, (share, put) in asked.items():
        told = put(max(64, round(share * inputs)))
        if inspect.isawaitable(told):
            told = await told
        slow = told.slowest_s > MOST_ANSWER_S
        print(
            f"{told.inputs:8,}  {name}: slowest {told.slowest_s:.2f} s, {len(told.problems)} problems",
            flush=True,
        )
        for problem in told.problems[:5]:
            print("         ", problem[:500])
        total, failed = total + told.inputs, failed or slow or bool(told.problems)
    for name, pid in pids.items():
        ended = Path(f"/proc/{pid}").exists() is False
        growth = 0.0 if ended else _peak_mb(pid) / before[name]
        print(f"{name}: " + ("it ended" if ended else f"peak {before[name]:.0f} MB, then x{growth:.2f}"))
        failed = failed or ended or growth > MOST_GROWTH
    served = await asyncio.to_thread(loop.run, 5)
    print("and they still serve:", served.summary.programs_ended, "of 5 programs")
    print(f"{total:,} inputs with seed {seed} in {time.monotonic() - began_s:.0f} s")
    return 1 if failed else 0
