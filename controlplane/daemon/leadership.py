"""Whether a daemon decides for its node, or stands by while another one does."""

from typing import Protocol


class Leadership(Protocol):
    """Asked before each decision; what it answers may change at any time."""

    @property
    def leading(self) -> bool:
        """Whether this daemon decides now."""
        ...

    @property
    def fence(self) -> int:
        """A number that grows with each leader, so that an older one is told apart; 0 where there is one only."""
        ...

    @property
    def has_others(self) -> bool:
        """Whether other daemons of this node may run beside it."""
        ...

    def fenced_out(self) -> None:
        """The stream has a later leader's commands: this one leads no more, whatever it believed."""
        ...


class SingleInstance:
    """The only daemon of its node: it always leads."""

    leading = True
    fence = 0
    has_others = False

    def fenced_out(self) -> None:
        """Who has no others stands down (``Daemon``)."""
