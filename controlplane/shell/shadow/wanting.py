"""Which shadow the configuration wants, and with which estimates."""

from collections.abc import Callable
from pathlib import Path

from controlplane.core.types import seconds
from controlplane.shell.disk import DiskWriter
from controlplane.shell.reload import Reloader
from controlplane.shell.shadow.estimates import Asked, Estimates
from controlplane.shell.shadow.shadow import Shadow
from controlplane.shell.stretch import Stretch
from controlplane.wire.log import Header


class Wanting:
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

    def want(self) -> None:
        """Begin anew with what is wanted now."""
        config, shadow = self._reloader.config, self._reloader.resolved.shadow
        asked, self._asked = config.shadow, self._wanted
        stretch = None
        if shadow is not None and asked.estimate_s:
            length_ns, disk = seconds(asked.stretch_s), DiskWriter("shadow")
            stretch = Stretch(self._folder / "shadow", length_ns, self._head, disk)
            self._estimates.ask(Asked(live=config, shadow=shadow, stretch=stretch, every_s=asked.estimate_s))
        else:
            self._estimates.ask(None)
        self._shadow.want(shadow, settings=asked.settings, cpu_ratio=asked.cpu_ratio, stretch=stretch)
