"""A turn that an engine has, from the picker's choice to the end of its answer."""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus

from controlplane.fleet.roster import Engine
from controlplane.fleet.turns import Turns
from controlplane.gate.gate import Gate
from controlplane.gate.requests import HOLD_HEADER, TURN_HEADER, hold_ms, is_retried
from controlplane.gate.tickets import Ticket

_COMES_WITHIN_S = 5.0  # Envoy begins to show a turn as it sends it on


class Running:
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
    ) -> None:
        self.ticket, self.engine = ticket, engine
        self._hold_ns, self._is_last = hold_ns, is_last
        self._gate, self._turns, self._now_ns = gate, turns, now_ns
        self._afterwards = afterwards
        self._status = 0
        self._is_whole = True  # as far as anybody tells
        self.is_told = False  # all there was to tell
        self._is_over = False
        turns.began(ticket, engine, now_ns())

    def answered(self, status: int, served_by: Engine | None) -> bool:
        """The engine answers. True if it is another one than that first chosen."""
        now_ns = self._now_ns()
        elsewhere = served_by is not None and served_by.place != self.engine.place
        if served_by is not None and elsewhere:
            self._turns.cut(self.ticket, self.engine, now_ns)
            self.engine = served_by
            self._turns.began(self.ticket, served_by, now_ns)
        self._status = status
        self._turns.first_byte(self.ticket, self.engine, status, now_ns)
        return elsewhere

    def told_to_client(self, engine_says: Mapping[str, str]) -> dict[str, str]:
        """The answer's headers: how long it was held, to which the engine's own gate adds its part; and its id."""
        held = engine_says.get(HOLD_HEADER) or hold_ms(self._hold_ns)
        return {HOLD_HEADER: held, TURN_HEADER: self.ticket.turn_id}

    def passed(self, data: bytes, *, is_last: bool) -> None:
        """Some of the answer's bytes went by: from now on an answer without a last piece was cut."""
        self._is_whole = self.is_told = is_last
        self._turns.passed(self.ticket.turn_id, data, self._now_ns())

    def ends_with_trailers(self) -> None:
        """The answer's last piece came after its bytes."""
        self._is_whole = self.is_told = True

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
            self._turns.ended(self.ticket, self.engine, self._status, self._now_ns())
        if self._is_last and not is_retried(self._status):
            self._gate.reply_read(self.ticket, (), is_last=True)


class Watched:
    """Turns that were sent on, and that another stream of Envoy's is to show from there."""

    def __init__(self) -> None:
        self._expected: dict[str, tuple[Running, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._expected)

    def expect(self, running: Running) -> None:
        """Its stream comes at once; if it does not, the client has left, and the turn is over."""
        turn_id = running.ticket.turn_id
        timer = asyncio.get_running_loop().call_later(_COMES_WITHIN_S, self._never_came, turn_id)
        self._expected[turn_id] = running, timer

    def take(self, turn_id: str) -> Running | None:
        """The turn whose stream has come; None for one that is not expected here, as after a restart."""
        running, timer = self._expected.pop(turn_id, (None, None))
        if timer is not None:
            timer.cancel()
        return running

    def stop(self) -> None:
        """Wait for none of them any more."""
        for turn_id in tuple(self._expected):
            self._never_came(turn_id)

    def _never_came(self, turn_id: str) -> None:
        if (running := self.take(turn_id)) is not None:
            running.over(cut=True)
