"""The embedded nats-server where a stranger listens at its port first, and where it dies at once."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from controlplane.core.model.errors import EngineUnavailable
from controlplane.daemon.bus import nats_server
from controlplane.daemon.bus.connection import Bus
from controlplane.daemon.bus.nats_server import EmbeddedNats
from controlplane.daemon.process.ports import free_ports
from controlplane.eventloop import task_group
from controlplane.transport.endpoint import read_endpoint


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As another node's nats-server does with whom it does not know."""
    writer.write(b"INFO {}\r\n")
    await reader.readline()
    writer.write(b"-ERR 'Authorization Violation'\r\n")
    writer.close()


async def test_a_stranger_that_took_the_port_meanwhile_is_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)

    async def nobody_yet(_: int) -> bool:
        return False

    monkeypatch.setattr(nats_server, "_answers", nobody_yet)
    async with await asyncio.start_server(_greet, "127.0.0.1", port):
        with pytest.raises(EngineUnavailable, match=r"ended at once; it says: .*address already in use"):
            await EmbeddedNats("test", tmp_path, port).start()
    assert read_endpoint("test", tmp_path) is None


async def test_one_that_dies_before_the_daemon_has_reached_it_is_started_again(tmp_path: Path) -> None:
    embedded = EmbeddedNats("test", tmp_path, 0)
    await embedded.start()
    endpoint = read_endpoint("test", tmp_path)
    assert endpoint is not None
    os.kill(endpoint.pid, signal.SIGKILL)
    bus = Bus(embedded.url, "test", embedded.restart)
    async with task_group() as tasks:
        tasks.start_soon(embedded.supervise)
        await bus.connect()
        tasks.cancel_scope.cancel()
    assert bus.connected
    await bus.close()
    await embedded.stop()
