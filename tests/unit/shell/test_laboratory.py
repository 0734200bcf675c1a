"""The process that replays: what it says, why it did not, and that none is left behind."""

import sys
from pathlib import Path

import anyio
import psutil
import pytest

from controlplane.eventloop import run
from controlplane.shell.laboratory import Laboratory, Told

STEPS = 40


def asked(program: str) -> Told:
    async def ask() -> Told:
        return await Laboratory().ask(Path("a.log"), (sys.executable, "-c", program), ["--set", "x=1"])

    return run(ask)


def test_what_the_command_prints_is_told_with_the_seconds_that_it_took() -> None:
    told = asked("import sys; print(sys.argv[1:])")
    assert (told.text, told.reason) == (b"['a.log', '--set', 'x=1', '--json']\n", "")
    assert told.cpu_s > 0


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit('a: is no log')", "a: is no log"),
        ("raise SystemExit(3)", "ended with 3"),
        ("import os; os.kill(os.getpid(), 9)", "took more than 300 s of CPU time: ask about a shorter stretch"),
    ],
)
def test_a_command_that_fails_leaves_its_reason(program: str, reason: str) -> None:
    told = asked(program)
    assert told.reason.endswith(reason)
    assert not told.text


def test_none_is_left_behind_whenever_it_is_cancelled() -> None:
    """From before the process is there until it runs; who was cancelled has waited for the command's end."""
    sleeps = (sys.executable, "-c", "import time; time.sleep(600)")

    async def cancelled_after(ticks: int) -> None:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(Laboratory().ask, Path("a.log"), sleeps, ())
                for _ in range(ticks):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()

    async def all_of_them() -> None:
        before = psutil.Process().children()
        for ticks in range(STEPS):
            await cancelled_after(ticks)
            assert psutil.Process().children() == before

    run(all_of_them)
