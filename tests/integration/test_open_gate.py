"""The daemon dies, the gate opens, the daemon is back: the real daemon and nats-server, and the engine double."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.daemon_process import NODE, TIMEOUT_S, BusClient, DaemonProcess, eventually, running

from controlplane.core.model.events import ProgramEnded
from controlplane.core.model.types import seconds
from controlplane.gate import GateLimits
from controlplane.lab.double import DoubleOptions, run_double

pytestmark = pytest.mark.asyncio

WINDOW = 2
LEASE_S = 2.0  # a daemon that is only slow for a moment is not to be lost
PROGRAMS = 6
CONFIG = f"""
preset = "fcfs"
heartbeat_s = 0.1
lease_s = {LEASE_S}
[admission]
window = {WINDOW}
[control]
interval_s = 0.2
"""


@pytest.fixture
def daemon(tmp_path: Path, nats_server: Any) -> Iterator[DaemonProcess]:
    with running(tmp_path, "--nats", nats_server.url, config=CONFIG) as process:
        yield process


class Agents:
    """Programs that run one turn after another until ``stop``, and then say that they have ended."""

    def __init__(self, url: str, http: aiohttp.ClientSession, bus: BusClient) -> None:
        self.stop = asyncio.Event()
        self.turns: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self._url, self._http, self._bus = url, http, bus
        self._said = 0

    async def run(self, name: str) -> None:
        body = {"messages": [{"role": "user", "content": "one two"}], "session_id": name, "max_tokens": 24}
        while not self.stop.is_set():
            async with self._http.post(f"{self._url}/v1/chat/completions", json=body) as response:
                await response.read()
                self.statuses[response.status] += 1
            self.turns[name] += 1
        self._said += 1
        await self._bus.publish(f"{NODE}/tool/agents", self._said, [ProgramEnded(program_id=name)])

    async def health(self) -> Any:
        async with self._http.get(f"{self._url}/penstock/health") as response:
            return await response.json()


def active(status: dict[str, Any]) -> set[str]:
    return {name for name, program in status["programs"].items() if program["status"] == "active"}


def window_is_kept(status: dict[str, Any]) -> bool:
    return len(active(status)) == WINDOW and len(status["queue"]) == PROGRAMS - WINDOW


async def story(agents: Agents, bus: BusClient, daemon: DaemonProcess) -> None:
    async def open_for_all() -> bool:
        health = await agents.health()
        everybody_ran = len(agents.turns) == PROGRAMS
        return bool(health["mode"] == "opening" and health["held_turns"] == 0 and everybody_ran)

    async with asyncio.TaskGroup() as group:
        for number in range(PROGRAMS):
            group.create_task(agents.run(f"p{number}"))
        before = await bus.status_where(window_is_kept, "window that is full")
        daemon.kill()
        await eventually(open_for_all, what="gate that let everybody in")
        daemon.start()
        after = await bus.status_where(window_is_kept, "window that is kept again")
        assert active(after) == active(before), "a grant from before the outage is not taken back"
        assert after["status"]["counts"]["taken_back"] >= PROGRAMS - WINDOW
        assert {after["programs"][name]["status"] for name in after["queue"]} == {"waiting"}
        for name, program in before["programs"].items():
            later_ns = after["programs"][name]["arrived_at_ns"] - program["arrived_at_ns"]
            assert later_ns < seconds(LEASE_S), "it keeps its arrival; a new one would be after the outage"

        async def holds_the_others() -> bool:
            health = await agents.health()
            return (health["mode"], health["held_programs"]) == ("governed", PROGRAMS - WINDOW)

        await eventually(holds_the_others, what="governed gate that holds who is not in the window")
        agents.stop.set()
    assert set(agents.statuses) == {200}, "no request failed"


async def test_the_window_is_kept_again_after_an_outage(daemon: DaemonProcess, nats_server: Any) -> None:
    bus = await BusClient.connect(nats_server.url)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    limits = GateLimits(keep_ns=0, open_step_ns=seconds(0.1))
    options = DoubleOptions(port=0, node=NODE, bus=nats_server.url, gate=limits, on_ready=ready.set_result)
    double = asyncio.ensure_future(run_double(options, stop))
    try:
        async with aiohttp.ClientSession() as http:
            agents = Agents(await ready, http, bus)
            await bus.status()

            async def is_governed() -> bool:
                return bool((await agents.health())["mode"] == "governed")

            await eventually(is_governed, what="gate that hears the daemon")
            await story(agents, bus, daemon)
    finally:
        stop.set()
        await asyncio.wait_for(double, TIMEOUT_S)
        await bus.close()
    assert "Traceback" not in daemon.log
