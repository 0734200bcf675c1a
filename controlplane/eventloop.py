"""How this package's processes run their tasks: with anyio, on asyncio, and on uvloop where that is installed."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from signal import Signals
from typing import TypeVar, TypeVarTuple

import anyio
from anyio.abc import TaskGroup, TaskStatus

from controlplane import clocks

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


def run(main: Callable[[*_Arguments], Awaitable[_Result]], *arguments: *_Arguments) -> _Result:
    """As ``anyio.run``. Time in which the loop stalls is none in which others were silent (``clocks``)."""

    async def ticking() -> _Result:
        clocks.tick_in(asyncio.get_running_loop())
        return await main(*arguments)

    return anyio.run(ticking, backend_options={"use_uvloop": find_spec("uvloop") is not None})


@asynccontextmanager
async def task_group() -> AsyncIterator[TaskGroup]:
    """As ``anyio.create_task_group``, but the first error, for which all others were cancelled, leaves it bare.

    So whoever waits for the group can catch it by its kind, and a user reads a sentence in place of a tree.
    """
    try:
        async with anyio.create_task_group() as group:
            yield group
        return
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
    raise first


async def on_signals(
    call: Callable[[Signals], object],
    *signals: Signals,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Call it with each signal until cancelled. Only the main thread of a process receives signals."""
    if threading.current_thread() is not threading.main_thread():
        task_status.started()
        return
    with anyio.open_signal_receiver(*signals) as received:
        task_status.started()
        async for number in received:
            call(number)
