"""Track by number which of the daemon's commands a gate has heard.

Commands come over a bus that may lose or delay them, and an older daemon may still speak. A number that was
skipped, or that a heartbeat names and the gate has not heard, is a missed command. A number that is not higher than
the last one comes from another daemon's life, or too late to be obeyed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controlplane.wire.heartbeat import Heartbeat


class CommandSequencer:
    """One daemon's commands, as they come in."""

    def __init__(self) -> None:
        self._boot_id = ""
        self._last: int | None = None
        self._announced = 0  # by the last heartbeat, whose commands may still be on the way
        self._missed = False

    def is_next(self, command_id: int) -> bool:
        """Take note of a command; False if it must no longer be obeyed. Number 0 is not counted."""
        if not command_id:
            return True
        if self._last is not None:
            if command_id <= self._last:
                return False
            self._missed = self._missed or command_id != self._last + 1
        self._last = command_id
        return True

    def misses(self, beat: "Heartbeat") -> bool:
        """Take note of a heartbeat; True if the gate should report to the daemon what it holds.

        A daemon that has just started asks for that anyway.
        """
        if beat.boot_id != self._boot_id:
            self._boot_id, self._last, self._announced, self._missed = beat.boot_id, beat.command_id, 0, False
            return False
        if self._last is None or self._announced > self._last:
            self._last, self._missed = self._announced, True
        self._announced = beat.command_id
        missed, self._missed = self._missed, False
        return missed
