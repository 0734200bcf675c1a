"""Which shadow the configuration wants, and with which estimates."""

from collections.abc import Callable
from pathlib import Path

from controlplane.core.model.types import seconds
from controlplane.daemon.process.disk import DiskWriter
from controlplane.daemon.process.reload import Reloader
from controlplane.daemon.shadow.estimates import Asked, Estimates
from controlplane.daemon.shadow.recording import RollingRecording
from controlplane.daemon.shadow.shadow import Shadow
from controlplane.wire.log import Header


class ShadowSetup:
    """Has ``shadow`` and ``estimates`` be as the configuration says. ``head`` begins each piece of a record."""

    def __init__(
        self,
        reloader: Reloader,
        shadow: Shadow,
        estimates: Estimates,
        folder: Path,
        head: Callable[[int], tuple[Header, str]],
    ) -> None:
        self._reloader, self._shadow, self._estimates = reloader, shadow, estimates
        self._folder, self._head = folder, head
        self._asked: tuple[object, ...] = ()

    @property
    def has_changed(self) -> bool:
        """Whether another shadow is wanted than the last time, or beside other decisions."""
        return self._asked != self._wanted

    @property
    def _wanted(self) -> tuple[object, ...]:
        """What a shadow's decisions and their comparison depend on."""
        config, shadow = self._reloader.config, self._reloader.resolved.shadow
        decides = [(each.policies, each.control) for each in (config, shadow) if each is not None]
        return (*decides, config.shadow)

    def configure(self) -> None:
        config, shadow = self._reloader.config, self._reloader.resolved.shadow
        asked, self._asked = config.shadow, self._wanted
        recording = None
        if shadow is not None and asked.estimate_s:
            length_ns, disk = seconds(asked.stretch_s), DiskWriter("shadow")
            recording = RollingRecording(self._folder / "shadow", length_ns, self._head, disk)
            self._estimates.ask(Asked(live=config, shadow=shadow, recording=recording, every_s=asked.estimate_s))
        else:
            self._estimates.ask(None)
        self._shadow.configure(shadow, settings=asked.settings, cpu_ratio=asked.cpu_ratio, recording=recording)
