"""The first connection to a fleet's NATS servers: who answers nothing is given up, and leaves nothing open."""

from typing import TYPE_CHECKING

import pytest
from support.ports import free_port

from controlplane.core.model.errors import EngineUnavailable
from controlplane.fleet.connection import connected

if TYPE_CHECKING:
    from support.nats import NatsServer


async def test_where_nobody_listens_that_is_told() -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    with pytest.raises(EngineUnavailable, match=rf"^no NATS server answers at {url}: .*Connect call failed"):
        await connected(url, "test", within_s=0.5)


async def test_so_is_a_server_that_is_frozen(nats_server: "NatsServer") -> None:
    nats_server.suspend()
    try:
        with pytest.raises(EngineUnavailable, match=r"^no NATS server answers at .*: nothing within 0\.5 s"):
            await connected(nats_server.url, "test", within_s=0.5)
        assert nats_server.connections_from_here == 0
    finally:
        nats_server.resume()


async def test_of_several_the_one_that_answers_is_taken(nats_server: "NatsServer") -> None:
    client = await connected(f"nats://127.0.0.1:{free_port()},{nats_server.url}", "test")
    try:
        assert client.is_connected
    finally:
        await client.close()
