"""The daemon's engine policies on their way: from its preset over the real bus into an engine double's queue."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.daemon_process import NODE, BusClient, DaemonProcess, eventually

from controlplane.core.engine_policies import EnginePolicies, loads
from controlplane.core.events import Event, FirstToken, PoolSampled, TurnEnded, TurnSubmitted
from controlplane.core.presets import PRESETS
from controlplane.lab.double import DoubleOptions, run_double
from controlplane.lab.experiment import Hardware
from controlplane.wire import subjects
from controlplane.wire.codec import Heartbeat, decode_events, decode_heartbeat

pytestmark = pytest.mark.asyncio

TIMEOUT_S = 60.0  # far more than is needed: the machine may be busy
CONFIG = """
preset = "{preset}"
heartbeat_s = 0.1
lease_s = {lease_s}
"""
LEASE_S = 4.0  # of a daemon that dies; one that is only slow for a moment is not to be lost
EVERYBODY = (
    '[admission]\npolicy = "fixed"\nwindow = 0\n'  # may enter at once: here it is the engine's queue that counts
)


@pytest.fixture
def daemon(tmp_path: Path, nats_server: Any) -> Iterator[Callable[..., DaemonProcess]]:
    """Makes a daemon of a preset, with more configuration, on a server that outlives it."""
    made: list[DaemonProcess] = []

    def make(preset: str, more: str = "", lease_s: float = 600.0) -> DaemonProcess:
        config = tmp_path / "penstock.toml"
        config.write_text(CONFIG.format(preset=preset, lease_s=lease_s) + more)
        made.append(DaemonProcess(tmp_path / "state", "--nats", nats_server.url, "--config", str(config)))
        made[0].start()
        return made[0]

    yield make
    for process in made:
        process.clean_up()


async def a_heartbeat(bus: BusClient) -> Heartbeat:
    heard: asyncio.Future[Heartbeat] = asyncio.get_running_loop().create_future()

    async def hear(message: Any) -> None:
        if not heard.done():
            heard.set_result(decode_heartbeat(message.data))

    await bus.client.subscribe(subjects.heartbeat_subject(NODE), cb=hear)
    async with asyncio.timeout(TIMEOUT_S):
        return await heard


@pytest.mark.parametrize("preset", sorted(PRESETS))
async def test_the_heartbeat_carries_the_presets_engine_policies(
    daemon: Callable[..., DaemonProcess], nats_server: Any, preset: str
) -> None:
    daemon(preset)
    bus = await BusClient.connect(nats_server.url)
    carried = loads((await a_heartbeat(bus)).engine_policies)
    assert carried == EnginePolicies(priority=PRESETS[preset].priority, memory=PRESETS[preset].memory)
    await bus.close()


async def test_the_heartbeat_carries_what_the_configuration_says_otherwise(
    daemon: Callable[..., DaemonProcess], nats_server: Any
) -> None:
    more = "[priority]\nshares = [0.25, 0.5]\npromote_s = 3\n[memory]\nshrink = false\n"

    daemon("mars", more)
    bus = await BusClient.connect(nats_server.url)
    carried = loads((await a_heartbeat(bus)).engine_policies)
    mars = PRESETS["mars"]
    assert carried.priority == replace(mars.priority, shares=(0.25, 0.5), promote_s=3)  # type: ignore[type-var]
    assert carried.memory == replace(mars.memory, shrink=False)  # type: ignore[type-var]
    await bus.close()


class Engine:
    """An engine double that runs one call at a time, and what it and its gate publish."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.events: list[Event] = []
        self._url, self._http = url, http
        self._news = asyncio.Event()

    async def hear(self, message: Any) -> None:
        self.events += decode_events(message.data).events
        self._news.set()

    async def mode(self) -> str:
        async with self._http.get(f"{self._url}/penstock/health") as response:
            return str((await response.json())["mode"])

    async def ask(self, program_id: str, words: int, tokens: int) -> int:
        content = "word " * words
        body = {"messages": [{"role": "user", "content": content}], "session_id": program_id, "max_tokens": tokens}
        async with self._http.post(f"{self._url}/v1/chat/completions", json=body) as response:
            await response.read()
            return response.status

    async def until(self, kind: type[Event], count: int = 1, **values: object) -> None:
        """Wait for so many events of a kind with these values."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                self._news.clear()
                alike = (event for event in self.events if type(event) is kind)
                found = [e for e in alike if all(getattr(e, name) == value for name, value in values.items())]
                if len(found) >= count:
                    return
                await self._news.wait()

    async def order_of_a_queue(self, name: str) -> list[str]:
        """While one turn runs a large and then a small one come; it is given up: who is served in which order?"""
        self.events.clear()
        runs = asyncio.ensure_future(self.ask(f"{name} runs", 1, 5000))
        await self.until(FirstToken, program_id=f"{name} runs")
        others = []
        for program_id, words in ((f"{name} large", 6000), (f"{name} small", 1)):
            others.append(asyncio.ensure_future(self.ask(program_id, words, 4)))
            await self.until(TurnSubmitted, program_id=program_id)
        runs.cancel()
        assert await asyncio.gather(*others) == [200, 200]
        await self.until(TurnEnded, 3)
        tokens = [event.program_id for event in self.events if isinstance(event, FirstToken)]
        return [program_id.removeprefix(f"{name} ") for program_id in tokens]


@contextlib.asynccontextmanager
async def engine_double(bus: BusClient, url: str) -> AsyncIterator[Engine]:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    options = DoubleOptions(
        port=0,
        node=NODE,
        bus=url,
        hardware=Hardware(max_running=1, pool_tokens=64_000),  # a level ends at 1000, 4000 and 16,000 tokens
        grace_s=0,
        on_ready=ready.set_result,
    )
    running = asyncio.ensure_future(run_double(options, stop))
    async with aiohttp.ClientSession() as http:
        engine = Engine(await ready, http)
        await bus.client.subscribe(subjects.all_events_subject(NODE), cb=engine.hear)
        try:
            yield engine
        finally:
            stop.set()
            await asyncio.wait_for(running, TIMEOUT_S)


async def until_mode(engine: Engine, *modes: str) -> None:
    async def look() -> bool:
        return await engine.mode() in modes

    await eventually(look, what=f"gate that is {' or '.join(modes)}")


@pytest.mark.parametrize(("preset", "expected"), [("fcfs", ["large", "small"]), ("mars", ["small", "large"])])
async def test_the_engine_double_runs_them(
    daemon: Callable[..., DaemonProcess], nats_server: Any, preset: str, expected: list[str]
) -> None:
    daemon(preset, EVERYBODY)
    bus = await BusClient.connect(nats_server.url)
    await bus.status()
    async with engine_double(bus, nats_server.url) as engine:
        await until_mode(engine, "governed")
        assert await engine.order_of_a_queue("first") == ["runs", *expected]
    await bus.close()


async def test_when_the_daemon_dies_the_engine_goes_by_its_own_and_obeys_the_next_one(
    daemon: Callable[..., DaemonProcess], nats_server: Any
) -> None:
    process = daemon("mars", EVERYBODY, lease_s=LEASE_S)
    bus = await BusClient.connect(nats_server.url)
    await bus.status()
    async with engine_double(bus, nats_server.url) as engine:
        await until_mode(engine, "governed")
        process.kill()
        await until_mode(engine, "keeping", "opening")
        engine.events.clear()
        await engine.until(PoolSampled, 2)  # the driver looks after the lease with each sample
        assert await engine.order_of_a_queue("without") == ["runs", "large", "small"]
        process.start()
        await until_mode(engine, "governed")
        assert await engine.order_of_a_queue("again") == ["runs", "small", "large"]
    await bus.close()
