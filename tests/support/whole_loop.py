"""The whole loop in processes of its own: nats-server, daemon, engine double; and a load generator for it."""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from controlplane.lab.load.options import ReplayOptions
from controlplane.lab.load.progress import ReplayProgress
from controlplane.lab.load.replay import replay
from controlplane.lab.load.watch import StatusWatch
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.synthetic import synthesize
from controlplane.transport.endpoint import resolve_url
from controlplane.transport.roles import BusRole
from support.daemon_process import NODE, TIMEOUT_S, DaemonProcess, until

TIME_SCALE = 30.0
POOL_TOKENS = 40_000


class Quiet:
    """Shows nothing."""

    def update(self, progress: ReplayProgress) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class Loop:
    """A daemon and an engine double, both processes of their own."""

    node = NODE

    def __init__(
        self,
        folder: Path,
        preset: str,
        *,
        pool_tokens: int = POOL_TOKENS,
        time_scale: float = TIME_SCALE,
        engine: Sequence[str] = (),
        daemon: Sequence[str] = (),
        logs: Path | None = None,
        files: int = 0,
    ) -> None:
        """``logs``: where they are written if not in ``folder``, the state directory. ``files``: as a daemon's."""
        self.folder, self.time_scale = folder, time_scale
        self.logs = logs or folder
        self._engine = ("--pool-tokens", str(pool_tokens), *engine)
        self.record = folder / "run.jsonl"
        arguments = ("--preset", preset, "--time-scale", f"{time_scale:g}", "--record", str(self.record))
        self.daemon = DaemonProcess(folder, *arguments, *daemon, files=files)
        self.daemon.log_path = self.logs / "daemon.log"
        self.double: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        self.daemon.start()
        self.start_double()
        self.wait_for_daemon()

    def start_double(self) -> None:
        """Where it listened before, if it has run."""
        port = self.url.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "controlplane", "engine-double", "--port", port, "--node", NODE]
        command += ["--state-dir", str(self.folder), "--time-scale", f"{self.time_scale:g}"]
        command += ["--tokens-per-word", "64"]
        command += self._engine
        log = self.logs / "double.log"
        with log.open("w") as output:
            self.double = subprocess.Popen(command, stderr=output)
        self.url = until(lambda: re.search(r"listens on (\S+)", log.read_text()), "double that listens")[1]

    def kill_engine(self) -> None:
        assert self.double is not None
        self.double.kill()
        self.double.wait()

    @property
    def engine_has_ended(self) -> bool:
        return self.double is not None and self.double.poll() is not None

    def engine_processes(self) -> dict[str, psutil.Process]:
        """What the engine consists of, by what each does."""
        assert self.double is not None
        return {"server": psutil.Process(self.double.pid)}

    def health(self) -> dict[str, object]:
        with urllib.request.urlopen(f"{self.url}/penstock/health", timeout=TIMEOUT_S) as answer:
            return dict(json.load(answer))

    def wait_for_daemon(self) -> None:
        until(lambda: self.health()["mode"] == "governed", "gate that hears the daemon")

    def run(self, programs: int) -> RunResult:
        bus = resolve_url(None, NODE, self.folder, role=BusRole.AGENT)
        with StatusWatch(resolve_url(None, NODE, self.folder, role=BusRole.READER), NODE) as watch:
            options = ReplayOptions(
                trace=synthesize("swe-bench", programs=programs, seed=1),
                url=self.url,
                arrival=Poisson(0.5),
                seed=1,
                tokens_per_word=64,
                time_scale=self.time_scale,
                nats=bus,
                node=NODE,
                observe=watch.latest,
            )
            return replay(options, Quiet())

    def stop(self) -> None:
        if self.double is not None:
            self.double.terminate()
            self.double.wait(TIMEOUT_S)
        self.daemon.clean_up()


def serving(loop: Loop) -> Iterator[Loop]:
    """The loop, started and governed, for as long as a fixture lives."""
    try:
        loop.start()
        yield loop
    finally:
        loop.stop()
