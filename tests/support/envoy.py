"""The real Envoy in a process of its own, never a double of it."""

from pathlib import Path

from controlplane.fleet.envoy import DataPlane, binary, bootstrap
from controlplane.lab.fleet.processes import Kind, Process
from controlplane.lab.fleet.site import healthy


class EnvoyProcess(Process):
    """One Envoy with the fleet's configuration, in ``folder``."""

    def __init__(self, folder: Path, plane: DataPlane) -> None:
        self.plane, self.config = plane, folder / "envoy.yaml"
        self.config.write_text(bootstrap(plane))
        command = (str(binary()), "--config-path", str(self.config), "--log-level", "warning")
        more = {"port": int(plane.listen.rpartition(":")[2]), "log": folder / "envoy.log", "environment": {}}
        once = ("--concurrency", "1", "--disable-hot-restart")
        super().__init__("envoy", Kind.ENVOY, (*command, *once), ready_within_s=240.0, **more)

    @property
    def url(self) -> str:
        return f"http://{self.plane.listen}"

    def start(self) -> None:
        """Return once it listens."""
        super().start()
        self.wait(0)

    def healthy(self, cluster: str) -> set[str]:
        """The addresses of a cluster that Envoy takes for healthy."""
        return healthy(self.plane, cluster)
