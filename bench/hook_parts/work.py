"""Work for a running engine, always the same, and what it takes in CPU time."""

import asyncio
import itertools
import os
import random
import signal
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from engine_server import EngineServer
from tiny_model import VOCABULARY

from hook_parts.engines import Hooked

BATCH = 8
PROMPT_TOKENS = 256
OUTPUT_TOKENS = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What one piece of work took."""

    wall_s: float
    step_s: float  # median time between two tokens of one sequence
    thread_cpu_s: float  # of the scheduler's main thread
    scheduler_cpu_s: float  # of its whole process
    http_cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The same work without, then with what is compared."""

    without: Segment
    plugged: Segment


class Engine:
    """One running engine, its processes' CPU clocks, and the work that it is given."""

    def __init__(self, server: EngineServer, http: aiohttp.ClientSession, hooked: Hooked) -> None:
        self.url = server.url
        self._http = http
        self._hooked = hooked
        main = psutil.Process(server.pid)
        (scheduler,) = [child for child in main.children() if hooked.process in " ".join(child.cmdline())]
        self._pids = (scheduler.pid, main.pid)

    async def work(self, first_wave: int, waves: int = 1, output_tokens: int = OUTPUT_TOKENS) -> Segment:
        """The same waves are the same work. Each is ``BATCH`` programs' turns at once."""
        before = self._cpu_ns()
        began = time.perf_counter()
        gaps: list[float] = []
        for wave in range(first_wave, first_wave + waves):
            gaps += await self._wave(wave, output_tokens)
        wall_s = time.perf_counter() - began
        spent_s = [(after - at) / 1e9 for after, at in zip(self._cpu_ns(), before, strict=True)]
        step_s = statistics.median(gaps) if gaps else 0.0
        names = ("thread_cpu_s", "scheduler_cpu_s", "http_cpu_s")
        return Segment(wall_s=wall_s, step_s=step_s, **dict(zip(names, spent_s, strict=True)))

    def _cpu_ns(self) -> list[int]:
        scheduler, http = self._pids
        thread_ns = int(Path(f"/proc/{scheduler}/task/{scheduler}/schedstat").read_text().split()[0])
        return [thread_ns, *(time.clock_gettime_ns(_cpu_clock(pid)) for pid in (scheduler, http))]

    async def _wave(self, wave: int, output_tokens: int) -> list[float]:
        rng = random.Random(wave)
        prompts = [rng.choices(range(3, VOCABULARY), k=PROMPT_TOKENS) for _ in range(BATCH)]
        turns = [self._turn(f"p{number}", prompt, output_tokens) for number, prompt in enumerate(prompts)]
        return (await asyncio.gather(*turns))[0]

    async def _turn(self, program_id: str, prompt: list[int], output_tokens: int) -> list[float]:
        """Seconds between its tokens, where it is the one that streams."""
        stream = program_id == "p0" and output_tokens == OUTPUT_TOKENS
        body = self._hooked.body(prompt, output_tokens, stream)
        headers = {"x-session-id": program_id}
        async with self._http.post(f"{self.url}{self._hooked.path}", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            if not stream:
                await response.read()
                return []
            seen = [time.perf_counter() async for line in response.content if line.startswith(b"data: {")]
        return [later - earlier for earlier, later in itertools.pairwise(seen)]

    def ask_for_steps(self) -> None:
        """Let the scheduler write down its steps (``switch/sitecustomize.py``)."""
        os.kill(self._pids[0], signal.SIGUSR2)

    async def health(self) -> Any:
        async with self._http.get(f"{self.url}/penstock/health") as response:
            return await response.json()


def _cpu_clock(pid: int) -> int:
    """Linux's id of the CPU clock of a process."""
    return (~pid << 3) | 2
