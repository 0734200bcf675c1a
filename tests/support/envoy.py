"""The real Envoy in a process of its own, never a double of it."""

import subprocess
import time
from pathlib import Path

from controlplane.fleet.envoy import DataPlane, binary, bootstrap
from controlplane.lab.fleet.site import healthy
from support.ports import is_listening

_START_TIMEOUT_S = 240.0


class EnvoyProcess:
    """One Envoy with the fleet's configuration, in ``folder``."""

    def __init__(self, folder: Path, plane: DataPlane, *, concurrency: int = 1) -> None:
        self.plane, self.log_path = plane, folder / "envoy.log"
        self._config = folder / "envoy.yaml"
        self._config.write_text(bootstrap(plane))
        self._concurrency = concurrency
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.plane.listen}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        command = [str(binary()), "--config-path", str(self._config), "--log-level", "warning"]
        command += ["--concurrency", str(self._concurrency), "--disable-hot-restart"]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not is_listening(int(self.plane.listen.rpartition(":")[2])):
            assert self.process.poll() is None, self.log_path.read_text()[-2000:]
            assert time.monotonic() < deadline, "Envoy did not listen"
            time.sleep(0.02)

    def healthy(self, cluster: str) -> set[str]:
        """The addresses of a cluster that Envoy takes for healthy."""
        return healthy(self.plane, cluster)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
