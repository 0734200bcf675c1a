"""A turn that an engine has, from the picker's choice to the end of its answer."""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Protocol

from controlplane.fleet.roster import Engine
from controlplane.fleet.watched_reply import WatchedReply
from controlplane.gate.gate import Gate
from controlplane.gate.requests import HOLD_HEADER, TURN_HEADER, hold_ms, is_retried, told_headers
from controlplane.gate.tickets import Ticket
from controlplane.gate.usage import Usage

_COMES_WITHIN_S = 5.0  # Envoy begins to show a turn as it sends it on


class Turns(Protocol):
    """Told of each turn that was let in, in the event loop's thread; no method may block or raise.

    ``now_ns`` is the picker's monotonic clock. A turn that another engine answered than the one it was sent to is
    first ``cut`` at the one and then ``began`` at the other.
    """

    def began(self, ticket: Ticket, engine: Engine, now_ns: int) -> None:
        """The turn is on its way to that engine."""

    def first_byte(self, ticket: Ticket, engine: Engine, status: int, now_ns: int) -> None:
        """The engine answers, with that HTTP status."""

    def ended(self, ticket: Ticket, engine: Engine, status: int, now_ns: int, usage: Usage | None = None) -> None:
        """The answer is over. Unless its bytes are observed, it may also have been cut after its first.

        ``status`` is 0 where the proxy tells the picker nothing of answers; ``usage`` is what the answer says of
        its size.
        """

    def cut(self, ticket: Ticket, engine: Engine, now_ns: int) -> None:
        """The client left, or the engine was lost, before the answer began or, as far as is known, was whole."""


class ActiveTurn:
    """Tells the gate and ``turns`` of one turn as it goes on. It is over once, whoever says so first."""

    def __init__(
        self,
        ticket: Ticket,
        engine: Engine,
        *,
        hold_ns: int,
        is_last: bool,
        gate: Gate,
        turns: Turns,
        now_ns: Callable[[], int],
        afterwards: Callable[[], None],
        reply: WatchedReply,
    ) -> None:
        self.ticket, self.engine = ticket, engine
        self._hold_ns, self._is_last = hold_ns, is_last
        self._gate, self._turns, self._now_ns = gate, turns, now_ns
        self._afterwards = afterwards
        self._reply = reply
        self._status = 0
        self._is_whole = True  # as far as anybody tells
        self.is_complete = False  # all there was to tell
        self._is_over = False
        turns.began(ticket, engine, now_ns())

    def answered(self, status: int, served_by: Engine | None, headers: Mapping[str, str]) -> bool:
        """The engine answers. True if it is another one than that first chosen."""
        self._reply.begin(status, headers.items())
        now_ns = self._now_ns()
        elsewhere = served_by is not None and served_by.address != self.engine.address
        if served_by is not None and elsewhere:
            self._turns.cut(self.ticket, self.engine, now_ns)
            self.engine = served_by
            self._turns.began(self.ticket, served_by, now_ns)
        self._status = status
        self._turns.first_byte(self.ticket, self.engine, status, now_ns)
        return elsewhere

    def response_headers(self, engine_headers: Mapping[str, str]) -> dict[str, str]:
        """The answer's headers: how long it was held (with the engine's own gate's part), its id, its change."""
        held = engine_headers.get(HOLD_HEADER) or hold_ms(self._hold_ns)
        return {HOLD_HEADER: held, TURN_HEADER: self.ticket.turn_id, **told_headers(self.ticket)}

    def passed(self, data: bytes, *, is_last: bool) -> None:
        """Some of the answer's bytes went by: from now on an answer without a last piece was cut."""
        self._is_whole = self.is_complete = is_last
        self._reply.add(data, is_last=is_last)

    def over(self, *, cut: bool = False) -> None:
        """The turn leaves the gate. ``cut``: unless it was answered, its client left or its engine was lost."""
        if self._is_over:
            return
        self._is_over = True
        refused = self._status >= HTTPStatus.BAD_REQUEST
        self._gate.leave(self.ticket, abandoned=f"its engine answered {self._status}" if refused else "")
        self._afterwards()
        if not self._is_whole or (cut and not self._status):
            self._turns.cut(self.ticket, self.engine, self._now_ns())
        else:
            self._turns.ended(self.ticket, self.engine, self._status, self._now_ns(), self._reply.usage)
        if self._is_last:
            if not is_retried(self._status):
                self._gate.reply_read(self.ticket, (), is_last=True)
        elif (tools := self._reply.called(self.ticket.program_id)) is not None:
            self._gate.reply_read(self.ticket, tools, self._reply.calls)


class AwaitingResponse:
    """Turns that were sent on, and that another stream of Envoy's is to show from there."""

    def __init__(self) -> None:
        self._expected: dict[str, tuple[ActiveTurn, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._expected)

    def expect(self, turn: ActiveTurn) -> None:
        """Its stream comes at once; if it does not, the client has left, and the turn is over."""
        turn_id = turn.ticket.turn_id
        timer = asyncio.get_running_loop().call_later(_COMES_WITHIN_S, self._never_came, turn_id)
        self._expected[turn_id] = turn, timer

    def take(self, turn_id: str) -> ActiveTurn | None:
        """The turn whose stream has come; None for one that is not expected here, as after a restart."""
        turn, timer = self._expected.pop(turn_id, (None, None))
        if timer is not None:
            timer.cancel()
        return turn

    def stop(self) -> None:
        """Wait for none of them any more."""
        for turn_id in tuple(self._expected):
            self._never_came(turn_id)

    def _never_came(self, turn_id: str) -> None:
        if (turn := self.take(turn_id)) is not None:
            turn.over(cut=True)
