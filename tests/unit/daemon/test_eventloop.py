"""Task groups whose errors can be caught by their kind, signals, and clean-up that nobody cuts short."""

import asyncio
import os
import signal

import pytest
from anyio import sleep, sleep_forever, to_thread
from anyio.lowlevel import checkpoint

from controlplane.core.model.errors import ConfigError, EngineUnavailable
from controlplane.daemon.compose import shielded_exit_stack
from controlplane.eventloop import on_signals, run, task_group


async def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("inside", [True, False])
async def test_the_first_error_leaves_a_group_as_it_is(inside: bool) -> None:
    cancelled = []

    async def other() -> None:
        try:
            await sleep_forever()
        finally:
            cancelled.append(True)
            await fail(EngineUnavailable("because it was cancelled"))

    why = ConfigError("what went wrong")
    with pytest.raises(ConfigError) as told:
        async with task_group() as group:
            group.start_soon(other)
            await checkpoint()
            if inside:
                await fail(why)
            group.start_soon(fail, why)
    assert cancelled
    assert told.value is why


async def test_each_signal_is_told_until_the_group_ends() -> None:
    told = []
    async with task_group() as group:
        await group.start(on_signals, told.append, signal.SIGHUP, signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(60):
            while len(told) < 2:  # noqa: ASYNC110  it comes from the kernel
                await sleep(0.01)
        group.cancel_scope.cancel()
    assert set(told) == {signal.SIGHUP, signal.SIGTERM}


async def test_another_thread_is_told_of_no_signal() -> None:
    async def story() -> None:
        async with task_group() as group:
            await group.start(on_signals, pytest.fail, signal.SIGTERM)

    await to_thread.run_sync(run, story)


async def test_what_is_done_in_the_end_is_done_whoever_fails_meanwhile() -> None:
    done = []

    async def close() -> None:
        await checkpoint()
        done.append(True)

    with pytest.raises(ConfigError, match="something beside it"):
        async with task_group() as group, shielded_exit_stack() as ending:
            ending.push_async_callback(close)
            group.start_soon(fail, ConfigError("something beside it"))
            await sleep_forever()
    assert done == [True]
