"""A daemon's bus with servers to choose from: one that says nothing is left, though its port stays open."""

from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import NODE, BusClient, eventually
from support.nats import NatsServer

from controlplane.core.model.commands import Admit
from controlplane.daemon.bus import connection as bus
from controlplane.daemon.bus.connection import Bus

pytestmark = [
    # What nats-py opened to a server that does not answer it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


async def test_a_server_that_is_frozen_is_left_for_another(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus, "_LEAVES", {"ping_interval": 0.2, "max_outstanding_pings": 2})
    another = NatsServer(tmp_path / "another")
    its_bus = Bus(f"{nats_server.url},{another.url}", NODE)
    await its_bus.connect()
    left, taken = (nats_server, another) if nats_server.connections_from_here else (another, nats_server)
    there: Any = None
    try:
        there = await BusClient.connect(taken.url)
        left.suspend()

        async def is_heard() -> bool:
            await its_bus.send([Admit(command_id=1, program_id="p", reason="test")])
            return bool(there.commands)

        await eventually(is_heard, what="a command by the other server")
    finally:
        left.resume()
        if there is not None:
            await there.close()
        await its_bus.close()
        another.kill()
