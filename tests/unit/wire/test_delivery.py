"""That the answer which `delivered` waits for is one to what was published before. The server is a double."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from nats.aio.client import Client

from controlplane.transport.delivery import delivered

_INFO = b'INFO {"server_id":"double","version":"2.11.0","proto":1,"max_payload":1048576,"headers":true}\r\n'


class _Server:
    """Answers PINGs, and keeps what it read before each."""

    def __init__(self) -> None:
        self.read = bytearray()
        self.stalled = asyncio.Event()
        self.stalled.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_INFO)
        while data := await reader.read(1 << 16):
            await self.stalled.wait()
            self.read += data
            writer.write(b"PONG\r\n" * self.read[-len(data) - 5 :].count(b"PING\r\n"))
        writer.close()


@asynccontextmanager
async def _connected() -> AsyncIterator[tuple[_Server, Client]]:
    double = _Server()
    server = await asyncio.start_server(double.serve, "127.0.0.1", 0)
    client = Client()
    await client.connect(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", allow_reconnect=False)
    try:
        yield double, client
    finally:
        await client.close()
        server.close()


async def test_an_answer_that_comes_too_late_leaves_the_connection_hearing() -> None:
    """As with a server that was frozen for a moment: what follows is heard, and confirmed only by an answer."""
    async with _connected() as (double, client):
        double.stalled.clear()
        with pytest.raises(TimeoutError):
            await delivered(client, 0.05)
        double.stalled.set()
        await delivered(client)
        double.stalled.clear()
        await client.publish("subject", b"not read")
        with pytest.raises(TimeoutError):
            await delivered(client, 0.05)
        double.stalled.set()
        await delivered(client)
        assert double.read.rindex(b"PING\r\n") > double.read.rindex(b"not read")


@pytest.mark.parametrize("before", [0, 20], ids=["at once", "with a socket that is full"])
async def test_it_comes_back_when_the_server_has_read_what_was_published(before: int) -> None:
    """``before`` batches of 900 kB ahead of the last, which a server that is stalled does not read."""
    async with _connected() as (double, client):
        if before:
            double.stalled.clear()
            asyncio.get_running_loop().call_later(0.1, double.stalled.set)
        for _ in range(before):
            await client.publish("subject", bytes(900_000))
            await asyncio.sleep(0)
        await client.publish("subject", b"the last")
        await delivered(client)
        assert double.read.rindex(b"PING\r\n") > double.read.rindex(b"the last")
