"""When each program of a replay starts: open arrivals at their times, closed ones when another has ended."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from controlplane.eventloop import task_group
from controlplane.lab.load.clock import TraceClock

RunProgram = Callable[[int, int], Coroutine[Any, Any, None]]
"""Runs the program of this index, arrived at this time, to its end."""


async def run_open(
    times_ns: Sequence[int], clock: TraceClock, run_program: RunProgram, started: Callable[[int], None]
) -> None:
    """Each program arrives at its time, however slow the endpoint is; ``started`` is told how late it began.

    Returns when every one has ended.
    """

    async with task_group() as group:
        for index, arrival_ns in enumerate(times_ns):
            await clock.sleep_until_ns(arrival_ns)
            started(clock.now_ns() - arrival_ns)
            group.start_soon(run_program, index, arrival_ns)


async def run_closed(programs: int, at_once: int, clock: TraceClock, run_program: RunProgram) -> None:
    """``at_once`` programs run; the next one arrives when one ends. Returns when every one has ended."""
    waiting = iter(range(programs))

    async def one_after_another() -> None:
        for index in waiting:
            await run_program(index, clock.now_ns())

    async with task_group() as group:
        for _ in range(min(at_once, programs)):
            group.start_soon(one_after_another)
