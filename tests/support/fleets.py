"""A fleet's processes as they run: NATS servers of a cluster, fleet daemons, engine doubles; no Envoy."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from controlplane.lab.fleet import processes
from controlplane.lab.fleet.nats_cluster import LocalCluster
from controlplane.lab.fleet.processes import Kind
from support.daemon_process import eventually
from support.ports import free_port


class Process(processes.Process):
    """One whose log can be waited for."""

    def __init__(self, name: str, kind: Kind, command: Sequence[str], port: int, folder: Path) -> None:
        super().__init__(name, kind, command, port=port, log=folder / f"{name}.log", environment={})

    def stop(self) -> int:
        """How it ended."""
        process = self._process
        super().stop()
        assert process is not None
        return process.returncode

    async def says(self, text: str, times: int = 1) -> None:
        """Return once its log has the text so many times."""
        what = f"{text!r} in the log of {self.name}: {self.log}"
        await eventually(lambda: self.log.read_text().count(text) >= times, what=what, timeout_s=60)


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
    return cluster.url, [Process(each.name, Kind.NATS, each.command, each.port, folder) for each in cluster.servers]


class EngineProcess(Process):
    """An engine double with a node of its own."""

    def __init__(self, node: str, url: str, folder: Path) -> None:
        port = free_port()
        options = ("engine-double", "--port", str(port), "--node", node, "--nats", url)
        super().__init__(node, Kind.ENGINE, (sys.executable, "-m", "controlplane", *options), port, folder)
        self.place = f"{node}/engine"


class FleetProcess(Process):
    """A fleet daemon."""

    def __init__(self, rank: int, url: str, folder: Path, *options: str) -> None:
        port, state = free_port(), folder / f"fleet-{rank}"
        state.mkdir(parents=True, exist_ok=True)
        given = ("fleet", "up", "--nats", url, "--rank", str(rank), "--state-dir", str(state))
        given += ("--listen", f"127.0.0.1:{port}", "--http", "off", *options)
        super().__init__(f"fleet-{rank}", Kind.DAEMON, (sys.executable, "-m", "controlplane", *given), port, folder)
