"""Real sandboxes under a real daemon: frozen while their program waits, awake before its tool or if all is lost."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psutil
import pytest
from support.daemon_process import NODE, BusClient, DaemonProcess, bus_of, eventually, listening, running, until

from controlplane.core.model import events as ev

ROOT = Path(__file__).resolve().parents[2]
AWAKE_S = 60.0  # 5 on a machine that has nothing else to do: `bench/freezing_live.py` has the figures
CONFIG = """
preset = "fcfs"
[admission]
policy = "fixed"
window = 1
[control]
stall_s = 3600
[control.sandboxes]
freeze = true
after_s = 0.2
"""
# An agent whose program "p" has a shell with a child. It reads what its program does, a word a line.
AGENT = """
import sys, time
from engine_hooks.tools.resources.client import resources
from engine_hooks.tools.shared import reporter

shell = resources().start_process("p", ["sh", "-c", "sleep 300 & sleep 300"], freezable=True)
print(shell.pid, resources()._keeper.pid, flush=True)
for word in sys.stdin:
    if word == "tool\\n":
        reporter().wait_for_slot("p", "c", "make")
        reporter().tool_started("p", "c", "make")
    elif word == "keep\\n":
        resources().live_keeper()
    print("did", flush=True)
"""


class Agent:
    def __init__(self, state: Path) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PENSTOCK_NODE": NODE,
            "PENSTOCK_STATE_DIR": str(state),
        }
        command = [sys.executable, "-c", AGENT]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, env=environment, **pipes)  # type: ignore[call-overload]
        self.shell, self.keeper = map(int, self.process.stdout.readline().split())

    @property
    def are_stopped(self) -> set[bool]:
        """Of its sandbox's processes, whether each is stopped."""
        try:
            shell = psutil.Process(self.shell)
            both = [shell, *shell.children()]
            return {each.status() == psutil.STATUS_STOPPED for each in both}
        except psutil.NoSuchProcess:
            return set()

    def do(self, word: str) -> None:
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "did\n"


@contextmanager
def agent_of(state: Path) -> Iterator[Agent]:
    agent = Agent(state)
    try:
        yield agent
    finally:
        agent.process.kill()
        agent.process.wait()
        agent.process.stdin.close()
        agent.process.stdout.close()
        until(lambda: not psutil.pid_exists(agent.shell), "reclaimed, though it was frozen")


@asynccontextmanager
async def frozen(folder: Path) -> AsyncIterator[tuple[DaemonProcess, BusClient, Agent]]:
    """A daemon whose one slot another program has, so that p is held, and frozen."""
    with running(folder, config=CONFIG) as daemon:
        await listening(daemon)
        async with bus_of(daemon) as bus:
            await bus.publish(
                f"{NODE}/engine/1", 1, [ev.TurnSubmitted(program_id="o", turn_id="o.1", projected_blocks=1)]
            )
            with agent_of(daemon.folder) as agent:
                await bus.publish(
                    f"{NODE}/gate/1", 1, [ev.TurnQueued(program_id="p", turn_id="p.1", prompt_tokens=9)]
                )
                await eventually(lambda: agent.are_stopped == {True}, what="frozen")
                yield daemon, bus, agent


async def test_it_sleeps_while_it_is_held_and_wakes_as_it_is_let_in(tmp_path: Path) -> None:
    async with frozen(tmp_path) as (daemon, bus, agent):
        await bus.status_where(lambda told: told["status"]["sandboxes"]["frozen"] == 1, "told")
        assert "1 of 1 frozen" in daemon.penstock("status").stdout
        ended = ev.TurnEnded(program_id="o", turn_id="o.1", prompt_tokens=9)
        await bus.publish(f"{NODE}/engine/1", 2, [ended])
        await bus.publish(f"{NODE}/tool/other", 1, [ev.ProgramEnded(program_id="o")])
        await bus.grant("p")
        await eventually(lambda: agent.are_stopped == {False}, what="awake")
        told = await bus.status_where(lambda told: told["status"]["sandboxes"]["woken"] == 1, "woken")
        assert told["status"]["sandboxes"]["late"] == 0


async def test_a_tool_that_finds_it_asleep_waits_for_it_and_that_is_told(tmp_path: Path) -> None:
    async with frozen(tmp_path) as (_, bus, agent):
        await asyncio.to_thread(agent.do, "tool")
        assert agent.are_stopped == {False}, "before it starts"
        told = await bus.status_where(lambda told: told["status"]["sandboxes"]["woken"] == 1, "woken")
        assert told["status"]["sandboxes"]["late"] == 1


@pytest.mark.parametrize("killed", ["daemon", "keeper", "agent stands still and daemon", "watchdog and keeper"])
async def test_whatever_is_killed_all_wakes(killed: str, tmp_path: Path) -> None:
    async with frozen(tmp_path) as (daemon, _, agent):
        keeper = psutil.Process(agent.keeper)
        if "stands still" in killed:
            agent.process.send_signal(signal.SIGSTOP)
        victims = [*keeper.children()] if "watchdog" in killed else []
        victims += [keeper] if "keeper" in killed else []
        victims += [psutil.Process(daemon.process.pid)] if "daemon" in killed else []  # type: ignore[union-attr]
        for each in victims:
            each.kill()
        await eventually(lambda: agent.are_stopped == {False}, what="awake", timeout_s=AWAKE_S)
        if "stands still" in killed:
            agent.process.send_signal(signal.SIGCONT)
        await asyncio.to_thread(agent.do, "keep")  # one that dies with its agent reclaims nothing
