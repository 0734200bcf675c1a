"""Disks that tests write to: one that does at once what the daemon's does in a thread, and real ones."""

from collections.abc import Callable


class PromptDisk:
    """A ``Disk`` that has done each write when ``put`` returns."""

    waiting = 0

    def put(self, write: Callable[[], object], size: int) -> bool:
        write()
        return True

    def settle(self, within_s: float = 0.0) -> bool:
        return True
