"""A nats-server of one's own: the configurations of deploy/, with the users that ``penstock bus config`` makes."""

import asyncio
import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
import trustme
from nats.js.errors import NotFoundError
from support.commands import penstock
from support.daemon_process import BusClient, DaemonProcess, eventually, running
from support.nats import nats_server_binary
from support.ports import free_port, is_listening

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.events import ProgramArrived
from controlplane.emit.emitter import Emitter
from controlplane.operate.deployment import FILES
from controlplane.transport.endpoint import resolve_url, url_from_env
from controlplane.transport.nats_options import CA, CERTIFICATE, PRIVATE_KEY
from controlplane.transport.roles import BusRole
from controlplane.transport.subjects import event_subject, stream_name

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
NODES = ("gpu7", "gpu8")


def bus_config(folder: Path, url: str, *nodes: str) -> "subprocess.CompletedProcess[str]":
    named = (word for node in nodes for word in ("--node", node))
    return penstock("bus", "config", "--folder", str(folder), "--url", url, *named)


def url_of(folder: Path, node: str, role: BusRole) -> str:
    return url_from_env({"PENSTOCK_NATS_URL_FILE": str(folder / "bus" / f"{node}.{role}.env")})


@asynccontextmanager
async def served(folder: Path, settings: Path, port: int, *changes: tuple[str, str]) -> AsyncIterator[None]:
    """A server with the settings of deploy/, on this port and with a store in the folder."""
    text = settings.read_text()
    for old, new in (("0.0.0.0:4222", f"127.0.0.1:{port}"), ("127.0.0.1:8222", "127.0.0.1:-1"), *changes):
        assert old in text, f"{settings}: no {old}"
        text = text.replace(old, new)
    (folder / settings.name).write_text(text)
    store = () if "store_dir" in text else ("-sd", folder / "store")  # as its unit gives it
    process = subprocess.Popen(  # noqa: ASYNC220
        [nats_server_binary(), "-c", folder / settings.name, *store], stderr=subprocess.DEVNULL
    )
    try:
        await eventually(lambda: process.poll() is not None or is_listening(port), what="a server")
        assert process.poll() is None, "the server ended"
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
async def compose(tmp_path: Path) -> AsyncIterator[Path]:
    """The compose file's server with two nodes; the folder that ``bus/`` lies in."""
    port = free_port()
    done = bus_config(tmp_path / "bus", f"nats://127.0.0.1:{port}", *NODES)
    assert done.returncode == 0, done.stderr
    async with served(tmp_path, DEPLOY / "compose" / "nats-server.conf", port, ('"/data"', f'"{tmp_path}/data"')):
        yield tmp_path


async def test_each_node_has_its_own(compose: Path) -> None:
    """Two daemons on one server: each sees its events alone, and cannot touch the other's stream."""
    daemons = []
    for node in NODES:
        daemons.append(
            DaemonProcess(compose / f"{node}-state", "--nats", url_of(compose, node, BusRole.DAEMON), node=node)
        )
        daemons[-1].start()

    try:
        first, second = [await BusClient.connect(url_of(compose, node, BusRole.DAEMON), node) for node in NODES]
        for bus in (first, second):
            await bus.status()
        agent = Emitter(url=url_of(compose, "gpu7", BusRole.AGENT), node="gpu7", role="tool")
        agent.start()
        agent.emit(ProgramArrived(program_id="run"))
        await first.status_where(lambda s: "run" in s["programs"], "the run")
        agent.close()
        await second.client.publish(event_subject("gpu7", "tool"), b"not theirs")
        with pytest.raises(NotFoundError):
            await second.client.jetstream().delete_stream(stream_name("gpu7"))
        assert (await first.status())["status"]["rejected"] == 0
        assert (await second.status())["programs"] == {}
        where = ("--state-dir", str(compose), "--nats", url_of(compose, "gpu7", BusRole.READER))
        done = await asyncio.to_thread(penstock, "doctor", "--node", "gpu7", "--json", *where)
        found = {finding["what"]: finding["state"] for finding in json.loads(done.stdout)}
        assert (found["bus"], found["JetStream"], found["clocks"]) == ("ok", "ok", "ok")
        await first.close()
        await second.close()
        assert [daemon.stop() for daemon in daemons] == [0, 0]
    finally:
        for daemon in daemons:
            daemon.clean_up()


async def test_the_systemd_server_wants_a_certificate_and_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, authority = free_port(), trustme.CA()
    made = {"server": authority.issue_cert("localhost"), "client": authority.issue_cert("penstock")}
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, issued in made.items():
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
        issued.private_key_pem.write_to_path(tmp_path / f"{name}-key.pem")
    for variable, name in ((CA, "ca"), (CERTIFICATE, "client"), (PRIVATE_KEY, "client-key")):
        monkeypatch.setenv(variable, str(tmp_path / f"{name}.pem"))
    assert bus_config(tmp_path / "bus", f"tls://localhost:{port}", "gpu7").returncode == 0
    daemon = DaemonProcess(tmp_path / "state", node="gpu7")

    settings = FILES / "systemd" / "nats-server.conf"
    async with served(tmp_path, settings, port, ("/etc/penstock/tls", str(tmp_path))):
        monkeypatch.setenv("PENSTOCK_NATS_URL_FILE", str(tmp_path / "bus" / "gpu7.daemon.env"))
        daemon.start()
        try:
            context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
            context.load_cert_chain(tmp_path / "client.pem", tmp_path / "client-key.pem")
            url = url_of(tmp_path, "gpu7", BusRole.DAEMON)
            client = await nats.connect(url, tls=context)
            bus = BusClient(client, "gpu7")
            await bus.status()
            agent = Emitter(url=url_of(tmp_path, "gpu7", BusRole.AGENT), node="gpu7", role="tool")
            agent.start()
            agent.emit(ProgramArrived(program_id="run"))
            await bus.status_where(lambda s: "run" in s["programs"], "the run")
            agent.close()
            await bus.close()
            assert daemon.stop() == 0
        finally:
            daemon.clean_up()
        with running(tmp_path / "stranger", "--nats", f"tls://localhost:{port}") as stranger:
            assert await asyncio.to_thread(stranger.wait) == 1
        assert "Authorization Violation" in stranger.log
        monkeypatch.delenv(CERTIFICATE)
        monkeypatch.delenv(PRIVATE_KEY)
        with running(tmp_path / "bare", "--nats", url) as bare:
            assert await asyncio.to_thread(bare.wait) == 1
        assert "no NATS server answers at tls://localhost" in bare.log


def test_passwords_are_made_once_and_nodes_may_be_added(tmp_path: Path) -> None:
    folder = tmp_path / "bus"
    first = bus_config(folder, "tls://bus.example:4222", "gpu7")
    assert first.stdout.split() == [
        str(folder / name) for name in ("roles.conf", *(f"gpu7.{role}.env" for role in BusRole))
    ]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    before = {role: url_of(tmp_path, "gpu7", role) for role in BusRole}
    assert before[BusRole.AGENT].startswith("tls://gpu7-agent:")
    (folder / "roles.conf").chmod(0o640)  # nats-server runs as another user
    assert bus_config(folder, "tls://moved.example:4222", *NODES).returncode == 0
    after = {role: url_of(tmp_path, "gpu7", role) for role in BusRole}
    assert after == {role: url.replace("bus.example", "moved.example") for role, url in before.items()}
    assert (folder / "roles.conf").stat().st_mode & 0o777 == 0o640
    assert json.loads((folder / "roles.conf").read_text())["accounts"].keys() == set(NODES)


@pytest.mark.parametrize(
    "url", ["bus.example:4222", "nats://me:secret@bus.example", "http://bus.example", "tls://"]
)
def test_what_is_no_servers_url_is_refused(tmp_path: Path, url: str) -> None:
    done = bus_config(tmp_path, url, "gpu7")
    assert done.returncode == 1
    assert "expected a URL such as" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_a_url_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_NATS_URL_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("PENSTOCK_NATS_URL", raising=False)
    with pytest.raises(ConfigError, match=r"PENSTOCK_NATS_URL_FILE: .*none: No such file"):
        resolve_url(None, "gpu7", tmp_path, role=BusRole.ENGINE)()
    (tmp_path / "none").write_text("nats://me@there:4222\n")
    assert resolve_url(None, "gpu7", tmp_path, role=BusRole.ENGINE)() == "nats://me@there:4222"
