"""Who is told of the turns that pass a fleet's picker, as they go."""

from typing import Protocol

from controlplane.fleet.roster import Engine
from controlplane.gate.tickets import Ticket


class Turns(Protocol):
    """Told of each turn that was let in, in the event loop's thread; no method may block or raise.

    ``now_ns`` is the picker's monotonic clock. A turn that another engine answered than the one it was sent to is
    first ``cut`` at the one and then ``began`` at the other.
    """

    def began(self, ticket: Ticket, engine: Engine, now_ns: int) -> None:
        """The turn is on its way to that engine."""

    def first_byte(self, ticket: Ticket, engine: Engine, status: int, now_ns: int) -> None:
        """The engine answers, with that HTTP status."""

    def ended(self, ticket: Ticket, engine: Engine, status: int, now_ns: int) -> None:
        """The answer is over. Unless its bytes are observed, it may also have been cut after its first.

        ``status`` is 0 where the proxy tells the picker nothing of answers.
        """

    def cut(self, ticket: Ticket, engine: Engine, now_ns: int) -> None:
        """The client left, or the engine was lost, before the answer began or, as far as is known, was whole."""

    def passed(self, turn_id: str, data: bytes, now_ns: int) -> None:
        """Some bytes of that turn's answer went by; told only where a second filter of the proxy observes them."""


class NoTurns:
    """Tells nobody."""

    def began(self, ticket: Ticket, engine: Engine, now_ns: int) -> None: ...
    def first_byte(self, ticket: Ticket, engine: Engine, status: int, now_ns: int) -> None: ...
    def ended(self, ticket: Ticket, engine: Engine, status: int, now_ns: int) -> None: ...
    def cut(self, ticket: Ticket, engine: Engine, now_ns: int) -> None: ...
    def passed(self, turn_id: str, data: bytes, now_ns: int) -> None: ...
