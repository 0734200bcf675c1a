"""A bus that asks for certificates: the daemon and an emitter come in with theirs, others do not."""

import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
import trustme
from support.daemon_process import NODE, BusClient, DaemonProcess, eventually
from support.nats import nats_server_binary
from support.ports import free_port, is_listening

from controlplane.core import events as ev
from controlplane.emit.emitter import Emitter
from controlplane.wire.nats_options import CA, CERTIFICATE, PRIVATE_KEY
from controlplane.wire.subjects import status_subject


@pytest_asyncio.fixture
async def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The URL of a nats-server with JetStream that verifies its clients; the variables name good files."""
    authority = trustme.CA()
    server, client = authority.issue_cert("localhost"), authority.issue_cert("penstock")
    blobs = {"ca": authority.cert_pem, "server": server.cert_chain_pems[0], "server_key": server.private_key_pem}
    blobs |= {"client": client.cert_chain_pems[0], "client_key": client.private_key_pem}
    for name, blob in blobs.items():
        blob.write_to_path(tmp_path / f"{name}.pem")
    pem = {name: str(tmp_path / f"{name}.pem") for name in blobs}
    port = free_port()
    told = ["-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(tmp_path / "store")]
    told += ["--tlscert", pem["server"], "--tlskey", pem["server_key"], "--tlscacert", pem["ca"], "--tlsverify"]
    process = subprocess.Popen([nats_server_binary(), *told], stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:

        async def up() -> bool:
            return is_listening(port)

        await eventually(up, what="a server")
        for variable, name in ((CA, "ca"), (CERTIFICATE, "client"), (PRIVATE_KEY, "client_key")):
            monkeypatch.setenv(variable, pem[name])
        yield f"tls://localhost:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.asyncio
async def test_daemon_and_emitter_come_in_with_their_certificates(tmp_path: Path, secured: str) -> None:
    daemon = DaemonProcess(tmp_path / "state", "--nats", secured)
    daemon.start()
    emitter = Emitter(url=secured, node=NODE, role="tool")
    emitter.start()
    try:

        async def run() -> None:
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            context.load_cert_chain(tmp_path / "client.pem", tmp_path / "client_key.pem")
            bus = BusClient(await nats.connect(secured, tls=context), NODE)

            async def knows() -> Any:
                emitter.emit(ev.ProgramArrived(program_id="p"))
                try:
                    reply = await bus.client.request(status_subject(NODE), b"programs", timeout=0.5)
                except (nats.errors.Error, TimeoutError):
                    return None
                return b'"p"' in reply.data

            await eventually(knows, what="a program that the emitter told of")
            await bus.close()

        await run()
    finally:
        emitter.close()
        daemon.clean_up()


def test_without_one_the_daemon_says_so(tmp_path: Path, secured: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (CERTIFICATE, PRIVATE_KEY):
        monkeypatch.delenv(variable)
    daemon = DaemonProcess(tmp_path / "state", "--nats", secured)
    daemon.start()
    assert daemon.wait() == 1
    assert "no NATS server answers at tls://localhost" in daemon.log
    assert "Traceback" not in daemon.log
