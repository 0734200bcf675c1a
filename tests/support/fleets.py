"""A fleet's processes as they run: NATS servers of a cluster, fleet daemons, engine doubles; no Envoy."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from controlplane.lab.fleet.nats_cluster import ClusterServer, LocalCluster
from support.daemon_process import eventually
from support.ports import free_port, is_listening

_STOP_S = 60.0


class Process:
    """A process with its log. ``start`` again after ``kill`` is a restart."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name, self.command = name, command
        self.log_path = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self._process is None, f"{self.name} runs already"
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(_STOP_S)

    def stop(self) -> int:
        """SIGTERM, and how it ended."""
        process, self._process = self._process, None
        assert process is not None
        process.terminate()
        return process.wait(_STOP_S)

    async def says(self, text: str, times: int = 1) -> None:
        """Return once its log has the text so many times."""

        async def look() -> bool:
            return self.log.count(text) >= times

        await eventually(look, what=f"{text!r} in the log of {self.name}:\n{self.log[-2000:]}", timeout_s=60)


@contextmanager
def running(*processes: Process) -> Iterator[None]:
    """They run within, as far as the test lets them live."""
    with ExitStack() as ending:
        for process in processes:
            process.start()
            ending.callback(process.kill)
        yield


def nats_cluster(folder: Path) -> tuple[str, list[Process]]:
    """Three servers, and the URL that names them."""
    cluster = LocalCluster.make(folder)
    return cluster.url, [_server(server, folder) for server in cluster.servers]


def _server(server: ClusterServer, folder: Path) -> Process:
    return Process(server.name, server.command, folder)


def penstock(name: str, folder: Path, *arguments: str) -> Process:
    return Process(name, [sys.executable, "-m", "controlplane", *arguments], folder)


class EngineProcess(Process):
    """An engine double with a node of its own."""

    def __init__(self, node: str, url: str, folder: Path) -> None:
        self.port = free_port()
        options = ["engine-double", "--port", str(self.port), "--node", node, "--nats", url]
        super().__init__(node, [sys.executable, "-m", "controlplane", *options], folder)
        self.place, self.address = f"{node}/engine", f"127.0.0.1:{self.port}"

    async def listens(self) -> None:
        while not is_listening(self.port):
            assert self.runs, self.log[-2000:]
            await asyncio.sleep(0.05)


class FleetProcess(Process):
    """A fleet daemon."""

    def __init__(self, rank: int, url: str, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.folder = folder / f"fleet-{rank}"
        self.folder.mkdir(parents=True, exist_ok=True)
        given = ["fleet", "up", "--nats", url, "--rank", str(rank), "--state-dir", str(self.folder)]
        given += ["--listen", f"127.0.0.1:{self.port}", "--http", "off", *options]
        super().__init__(f"fleet-{rank}", [sys.executable, "-m", "controlplane", *given], folder)

    def clean(self) -> None:
        """Forget who it was: another machine's daemon starts in its place."""
        with suppress(FileNotFoundError):
            (self.folder / "fleet" / "identity").unlink()
