"""How the daemon's commands are counted, so that whoever hears them knows what was missed and who said it last.

A daemon that starts counts on from a number that no daemon before it has reached (``begin``). Among two that
command the same node the later one's numbers are higher, and a number that is told back tells of which life it is.
"""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Numbering:
    """``sent``: the number of the last command."""

    sent: int = 0
    began: int = 0  # this life's commands are numbered beyond it
    recalled: int = 0  # of earlier lives the commands up to it are remembered

    def next(self) -> int:
        """The number of one more command."""
        self.sent += 1
        return self.sent

    def begin(self, number: int) -> None:
        """A new life: count on from ``number``, or from where the last one ended as far as that is known."""
        self.recalled = self.sent
        self.began = self.sent = max(self.sent, number)

    def remembers(self, number: int) -> bool:
        """Whether what followed the command is known; 0, a command that nobody counted, never is."""
        return 0 < number <= self.recalled or self.began < number <= self.sent
