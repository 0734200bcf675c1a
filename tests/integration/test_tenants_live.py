"""Budgets of tenants and runs over a kill: a real daemon and bus, and a real gate before the engine double."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.daemon_process import NODE, TIMEOUT_S, BusClient, DaemonProcess, eventually, running

from controlplane.lab.double import DoubleOptions, run_double

pytestmark = pytest.mark.asyncio

KEYS = {"ours": "sk-ours", "poor": "sk-poor"}


def digest(name: str) -> str:
    return "sha256:" + hashlib.sha256(KEYS[name].encode()).hexdigest()


CONFIG = f"""
preset = "fcfs"
lease_s = 600
[admission]
window = 4
[control]
interval_s = 0.2
stall_s = 3600
[tenants.ours]
keys = ["{digest("ours")}"]
weight = 3
program_turns = 3
[tenants.poor]
keys = ["{digest("poor")}"]
turns = 1
window_s = 600
exhausted = "refuse"
"""


@pytest.fixture
def daemon(tmp_path: Path, nats_server: Any) -> Iterator[DaemonProcess]:
    with running(tmp_path, "--nats", nats_server.url, config=CONFIG) as process:
        yield process


class Client:
    """Asks the gate before the double with a tenant's key."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url, self.http = url, http

    async def health(self) -> Any:
        async with self.http.get(f"{self.url}/penstock/health") as response:
            return await response.json()

    async def turn(self, tenant: str, program: str, **headers: str) -> tuple[int, dict[str, str], Any]:
        """Status, headers and body of one turn."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named |= {"x-penstock-program-id": program, "authorization": f"Bearer {KEYS[tenant]}"}
        body = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 4}
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body, headers=named) as response:
            answer = await response.json()
            return response.status, {name.lower(): value for name, value in response.headers.items()}, answer


@asynccontextmanager
async def governed(bus_url: str) -> AsyncIterator[tuple[Client, BusClient]]:
    """Client and bus, once the gate hears the daemon."""
    bus = await BusClient.connect(bus_url)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    options = DoubleOptions(port=0, node=NODE, bus=bus_url, on_ready=ready.set_result)
    double = asyncio.ensure_future(run_double(options, stop))
    try:
        async with aiohttp.ClientSession() as http:
            client = Client(await ready, http)

            async def is_governed() -> bool:
                return bool((await client.health())["mode"] == "governed")

            await eventually(is_governed, what="gate that hears the daemon")
            yield client, bus
    finally:
        stop.set()
        await asyncio.wait_for(double, TIMEOUT_S)
        await bus.close()


async def stopped(client: Client, bus: BusClient, *programs: str) -> None:
    """Wait until the daemon has ended these, and the gate, to whom it says so at the same time, lets none pass."""

    def are_ended(status: dict[str, Any]) -> bool:
        return all(status["programs"].get(name, {}).get("status") == "ended" for name in programs)

    async def none_pass() -> bool:
        return bool((await client.health())["granted_programs"] == 0)

    await bus.status_where(are_ended, "run that is stopped")
    await eventually(none_pass, what="word of it at the gate")


async def test_a_killed_daemon_knows_what_was_spent(daemon: DaemonProcess, nats_server: Any) -> None:
    async with governed(nats_server.url) as (client, bus):
        for _ in range(2):
            assert (await client.turn("ours", "root"))[0] == 200
        assert (await client.turn("poor", "first"))[0] == 200
        assert (await asyncio.wait_for(client.turn("poor", "second"), TIMEOUT_S))[0] == 429
        daemon.kill()
        daemon.start()
        assert (await asyncio.wait_for(client.turn("ours", "root"), TIMEOUT_S))[0] == 200, "the third of three"
        await stopped(client, bus, "root")
        status, _, body = await asyncio.wait_for(client.turn("ours", "root"), TIMEOUT_S)
        assert (status, body["error"]["code"]) == (429, "budget_spent")
        status, _, body = await asyncio.wait_for(client.turn("poor", "third"), TIMEOUT_S)
        assert (status, body["error"]["message"]) == (429, "tenant poor has spent its 1 turns in 600 s")
        daemon.kill()
        daemon.start()
        status, _, body = await asyncio.wait_for(client.turn("ours", "root"), TIMEOUT_S)
        assert (status, body["error"]["code"]) == (429, "budget_spent"), "what was stopped stays so"
    assert "Traceback" not in daemon.log
