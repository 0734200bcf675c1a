"""Replays against an endpoint of a test, and what they showed."""

import asyncio
from typing import Any

from endpoint_double import EndpointDouble, serving

from controlplane.lab.experiment import Workload
from controlplane.lab.load.options import ReplayOptions
from controlplane.lab.load.progress import ReplayProgress
from controlplane.lab.load.replay import replay
from controlplane.lab.workload.arrivals import Closed
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.trace import ProgramTrace, Trace, Turn


class Recorder:
    """A display that remembers."""

    def __init__(self) -> None:
        self.seen: list[ReplayProgress] = []
        self.notes: list[str] = []

    def update(self, progress: ReplayProgress) -> None:
        self.seen.append(progress)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None:
        pass


def program(name: str, *turns: tuple[int, int], tool: str = "bash", tool_ms: float | None = 5.0) -> ProgramTrace:
    return ProgramTrace(
        program_id=name,
        source="test",
        turns=tuple(Turn(input_tokens=i, output_tokens=o, tool=tool, tool_ms=tool_ms) for i, o in turns),
    )


async def run(endpoint: EndpointDouble, *programs: ProgramTrace, **options: Any) -> tuple[RunResult, Recorder]:
    """Serve the endpoint in this thread's loop and replay in another."""
    recorder = Recorder()

    async def both() -> RunResult:
        async with serving(endpoint):
            options.setdefault("arrival", Closed(2))
            told = {name: options.pop(name) for name in ("shared_prefix", "telemetry") if name in options}
            options["workload"] = Workload(trace="in hand", **told)
            asked = ReplayOptions(trace=Trace(programs=programs, rejected=[]), url=endpoint.url, **options)
            return await asyncio.to_thread(replay, asked, recorder)

    return await both(), recorder
