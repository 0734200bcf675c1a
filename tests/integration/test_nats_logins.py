"""A password with every special character, at a real server: how each of our clients takes it, and its refusal."""

import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from support.daemon_process import eventually
from support.nats import nats_server_binary
from support.ports import free_port, is_listening

from controlplane.core.model.errors import EngineUnavailable
from controlplane.daemon.bus.connection import Bus
from controlplane.emit.emitter import Emitter
from controlplane.fleet.connection import connected

PASSWORD = "p@ss:/w#r?d%1,2 "


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    port = free_port()
    told = ["-a", "127.0.0.1", "-p", str(port), "--user", "ops", "--pass", PASSWORD]
    process = subprocess.Popen([nats_server_binary(), *told], stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        await eventually(lambda: is_listening(port), what="a server")
        yield port
    finally:
        process.kill()
        process.wait()


async def daemon_connects(url: str) -> str:
    bus = Bus(url, "n")
    try:
        await bus.connect()
    except EngineUnavailable as error:
        return str(error)
    await bus.close()
    return ""


async def fleet_connects(url: str) -> str:
    try:
        await (await connected(url, "test", within_s=5)).close()
    except EngineUnavailable as error:
        return str(error)
    return ""


async def emitter_connects(url: str) -> str:
    emitter = Emitter(url=url, node="n", role="tool")
    emitter.start()
    try:
        await eventually(lambda: emitter.stats.connected or emitter.stats.last_error, what="an attempt to connect")
        return emitter.stats.last_error
    finally:
        emitter.close()


@pytest.mark.parametrize("connects", [daemon_connects, fleet_connects, emitter_connects])
async def test_logins(port: int, connects: Callable[[str], Awaitable[str]]) -> None:
    password = quote(PASSWORD, safe="")
    assert await connects(f"nats://ops:{password}@127.0.0.1:{port}") == ""
    told = await connects(f"nats://ops:not{password}@127.0.0.1:{port}")
    assert "Authorization Violation" in told
    assert "as %3A %2F" in told
    assert "p@ss" not in told
    assert password not in told
