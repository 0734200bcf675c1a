"""One timer, set for the next deadline of a clock that may run faster than the wall clock."""

import asyncio
from collections.abc import Callable

# A clock behind the loop's by a rounding must not make the timer fire again and again at one instant.
_LEAST_SLEEP_S = 0.001


class Alarm:
    """Calls ``ring`` at or after the instant it is set for. Use it in the event loop's thread."""

    def __init__(self, ring: Callable[[], None], *, wall_second_ns: int) -> None:
        self._ring = ring
        self._wall_second_ns = wall_second_ns
        self._timer: asyncio.TimerHandle | None = None
        self._at_ns = 0

    def set(self, at_ns: int | None, now_ns: int) -> None:
        """Ring at ``at_ns`` at the latest; an earlier setting stays. None changes nothing."""
        if at_ns is None or (self._timer is not None and self._at_ns <= at_ns):
            return
        self.cancel()
        delay_s = max(_LEAST_SLEEP_S, (at_ns - now_ns) / self._wall_second_ns)
        self._at_ns = at_ns
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._ring()
