"""Tools that wait for a slot of the host: a real daemon, the real bus and its Unix socket, threads that wait."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import NODE, BusClient, DaemonProcess, bus_of, eventually, running

from controlplane.emit import slot_wait
from controlplane.emit.tool_reporter import ToolReporter

LONG_S = 600.0  # more than a test may take
ONE_SLOT = "[host]\ncpus = 1\n[control.tool_slots]\nper_cpu = 1\nbusy = 0\n"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with running(tmp_path, config=ONE_SLOT) as daemon:
        yield daemon


class Tools:
    """Runs tools of one agent, each in a thread of its own, and notes when they ran."""

    def __init__(self, url: str) -> None:
        self.reporter = ToolReporter(url=url, node=NODE, slots=True)
        self.ran: dict[str, tuple[float, float]] = {}
        self.may_end: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []

    def begin(self, call: str) -> None:
        self.may_end[call] = threading.Event()
        thread = threading.Thread(target=self._run, args=(call,))
        self._threads.append(thread)
        thread.start()

    def _run(self, call: str) -> None:
        self.reporter.wait_for_slot("run", call, "bash")
        self.reporter.tool_started("run", call, "bash")
        self.ran[call] = (time.monotonic(), 0.0)
        self.may_end[call].wait(LONG_S)
        self.ran[call] = (self.ran[call][0], time.monotonic())
        self.reporter.tool_ended("run", call)

    def close(self) -> None:
        for event in self.may_end.values():
            event.set()
        for thread in self._threads:
            thread.join()
        self.reporter.close()


@asynccontextmanager
async def tools_of_an_agent(daemon: DaemonProcess, through: str) -> AsyncIterator[tuple[Tools, BusClient]]:
    """Tools that reach the daemon ``through`` the bus or its socket; they have ended with the block."""
    async with bus_of(daemon) as client:
        url = await daemon.url() if through == "bus" else f"unix:{daemon.folder / f'{NODE}.sock'}"
        tools = Tools(url)
        tools.reporter.program_started("run")
        try:
            await eventually(lambda: tools.reporter.stats.connected, what="connection")
            yield tools, client
        finally:
            await asyncio.to_thread(tools.close)


async def runs(tools: Tools, call: str) -> None:
    await eventually(lambda: call in tools.ran, what=f"start of {call}")


def tools_of(told: dict[str, Any]) -> tuple[int, int]:
    """As the daemon counts them: those that run, and those that wait."""
    pressure = told["status"]["pressure"]
    return pressure["tools_active"], pressure["tools_waiting"]


@pytest.mark.parametrize("through", ["bus", "socket"])
async def test_they_start_one_after_the_other_and_the_wait_is_told(
    daemon: DaemonProcess, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits asks once, and gives nobody up: it starts because it is told as soon as the slot is free."""
    for name in ("_ASK_AGAIN_S", "_SILENT_S"):
        monkeypatch.setattr(slot_wait, name, LONG_S)

    async with tools_of_an_agent(daemon, through) as (tools, client):
        tools.begin("one")
        await runs(tools, "one")
        began_s = time.monotonic()
        tools.begin("two")
        await client.status_where(lambda s: tools_of(s) == (1, 1), "one runs and one waits")
        await asyncio.sleep(0.5)
        assert "two" not in tools.ran
        tools.may_end["one"].set()
        await runs(tools, "two")
        told = await client.status_where(lambda s: s["status"]["pressure"]["tool_wait_s"] > 0, "a wait")
        assert told["status"]["pressure"]["tool_wait_s"] < time.monotonic() - began_s
    assert tools.ran["two"][0] >= tools.ran["one"][1]
    assert tools.reporter.unanswered == 0
