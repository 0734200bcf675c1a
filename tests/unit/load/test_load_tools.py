"""Tools are reported in order, wait for slots, and really use the CPU."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.events import ToolEnded, ToolEnqueued, ToolStarted
from controlplane.lab.load.burn import CpuBurner
from controlplane.lab.load.clock import TraceClock
from controlplane.lab.load.tools import ToolOptions, ToolRunner

MS = 1_000_000


async def run_tools(options: ToolOptions, *durations_ns: int, time_scale: float = 1.0) -> list[Any]:
    events: list[Any] = []
    runner = ToolRunner(options, clock=TraceClock(time_scale), send=events.append)
    await runner.start()
    await asyncio.gather(*(runner.run("p", f"c{n}", "bash", duration) for n, duration in enumerate(durations_ns)))
    assert runner.open_tools() == ()
    runner.close()
    return events


async def test_a_tool_is_enqueued_started_and_ended_in_trace_time() -> None:
    enqueued, started, ended = await run_tools(ToolOptions(), 5_000 * MS, time_scale=100)
    assert [type(event) for event in (enqueued, started, ended)] == [ToolEnqueued, ToolStarted, ToolEnded]
    assert ended.ok
    assert ended.call_id == "c0"
    assert ended.duration_ns >= 5_000 * MS


async def test_slots_bound_how_many_run_and_the_rest_wait_enqueued() -> None:
    events = await run_tools(ToolOptions(slots=2), *[10 * MS] * 6)
    running = peak = 0
    for event in events:
        running += isinstance(event, ToolStarted) - isinstance(event, ToolEnded)
        peak = max(peak, running)
    assert peak == 2
    assert sum(isinstance(event, ToolEnqueued) for event in events[:8]) == 6


async def test_open_tools_say_what_waits_and_what_runs() -> None:
    runner = ToolRunner(ToolOptions(slots=1), clock=TraceClock(), send=lambda event: None)
    tasks = [asyncio.create_task(runner.run("p", f"c{n}", "bash", 10_000 * MS)) for n in range(2)]
    await asyncio.sleep(0)
    assert [(tool.call_id, tool.started) for tool in runner.open_tools()] == [("c0", True), ("c1", False)]
    assert (runner.running, runner.waiting) == (1, 1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert runner.open_tools() == ()
    assert (runner.running, runner.waiting) == (0, 0)


def cpu_time_of_children_ns(burner: CpuBurner) -> int:
    ticks = 0
    for process in burner._pool._processes.values():
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * 10 * MS


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
async def test_a_share_of_the_tool_is_burnt_in_workers_at_low_priority() -> None:
    runner = ToolRunner(ToolOptions(cpu_ratio=0.5, cpu_workers=1), clock=TraceClock(), send=lambda event: None)
    await runner.start()
    assert runner._burner is not None
    before_ns = cpu_time_of_children_ns(runner._burner)
    await runner.run("p", "c", "bash", 300 * MS)
    burnt_ns = cpu_time_of_children_ns(runner._burner) - before_ns
    (process,) = runner._burner._pool._processes.values()
    niceness = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[16]
    runner.close()
    assert 100 * MS <= burnt_ns < 300 * MS  # half of it and what a worker costs; the kernel counts in ticks
    assert int(niceness) == min(19, os.nice(0) + 10)


async def test_tools_take_longer_when_they_contend_for_a_cpu() -> None:
    options = ToolOptions(cpu_ratio=1.0, cpu_workers=1)
    assert (await run_tools(options, *[40 * MS] * 3))[-1].duration_ns >= 110 * MS


async def test_dead_workers_do_not_fail_the_tool() -> None:
    runner = ToolRunner(ToolOptions(cpu_ratio=1.0, cpu_workers=1), clock=TraceClock(), send=lambda event: None)
    await runner.start()
    assert runner._burner is not None
    for process in runner._burner._pool._processes.values():
        process.kill()
    await runner.run("p", "c", "bash", 30 * MS)
    assert runner.workers_died
    runner.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ToolOptions(cpu_ratio=1.5), "expected 0 <= tools.cpu_ratio <= 1, got 1.5"),
        (lambda: ToolOptions(slots=-1), "expected 0 <= tools.slots, got -1"),
    ],
)
def test_bad_options_are_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]
