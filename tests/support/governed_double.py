"""The engine double behind a gate that hears the daemon, with a reporter of tools, in the test's own process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from controlplane.emit.tool_reporter import ToolReporter
from controlplane.lab.double import DoubleOptions, run_double
from support.daemon_process import NODE, TIMEOUT_S, BusClient, eventually


class GateClient:
    """Asks the gate before the double."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url, self.http = url, http

    async def health(self) -> Any:
        async with self.http.get(f"{self.url}/penstock/health") as response:
            return await response.json()


@asynccontextmanager
async def governed_double(bus_url: str) -> AsyncIterator[tuple[GateClient, ToolReporter, BusClient]]:
    """Client, reporter and bus, once the gate is governed; all of them end with the block."""
    bus = await BusClient.connect(bus_url)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    options = DoubleOptions(port=0, node=NODE, bus=bus_url, on_ready=ready.set_result)
    double = asyncio.ensure_future(run_double(options, stop))
    reporter = ToolReporter(url=bus_url, node=NODE)
    try:
        async with aiohttp.ClientSession() as http:
            client = GateClient(await ready, http)

            async def is_governed() -> bool:
                return bool((await client.health())["mode"] == "governed")

            await eventually(is_governed, what="gate that hears the daemon")
            yield client, reporter, bus
    finally:
        stop.set()
        await asyncio.wait_for(double, TIMEOUT_S)
        reporter.close()
        await bus.close()
