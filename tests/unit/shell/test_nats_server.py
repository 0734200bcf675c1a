"""The embedded nats-server where a stranger listens at its port first."""

import asyncio
from pathlib import Path

import pytest

from controlplane.core.errors import EngineUnavailable
from controlplane.shell import nats_server
from controlplane.shell.nats_server import EmbeddedNats
from controlplane.shell.ports import free_ports
from controlplane.wire.endpoint import read_endpoint

pytestmark = pytest.mark.asyncio


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
