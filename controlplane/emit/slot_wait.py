"""A tool call's wait until the daemon says that the host has room, or until there is no daemon to say so.

Without a daemon the tool starts anyway: a control plane that is gone must not hold up an agent.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable

from controlplane import clocks

_LOOK_S = 0.25
_ASK_AGAIN_S = 2.0  # the answer may have been lost
_SILENT_S = 3.0  # the daemon's heartbeat comes several times a second


class SlotWait:
    """One call's wait. ``ask`` asks the daemon; ``last_seen_s``: when it last gave a sign of life (``awake_s``)."""

    def __init__(self, ask: Callable[[], None], last_seen_s: Callable[[], float], patience_s: float) -> None:
        self.is_answered = False
        self._ask = ask
        self._last_seen_s = last_seen_s
        self._began_s = clocks.awake_s()
        self._asked_s = float("-inf")
        self._deadline_s = self._began_s + patience_s
        self._answered = threading.Event()
        self._wake: Callable[[], object] | None = None

    def answer(self) -> None:
        """Take the daemon's answer. Called from another thread."""
        self.is_answered = True
        self._answered.set()
        wake = self._wake
        if wake is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                wake()

    def block(self) -> None:
        """Block this thread until the call may start."""
        while look_s := self._next_look_s():
            self._answered.wait(look_s)

    async def until_answered(self) -> None:
        """Wait in this task until the call may start."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(woken.set)
        while look_s := self._next_look_s():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), look_s)

    def _next_look_s(self) -> float:
        """Seconds until the next check; 0 if waiting is no longer worth it."""
        now_s = clocks.awake_s()
        silent_s = now_s - max(self._began_s, self._last_seen_s())
        if self.is_answered or now_s >= self._deadline_s or silent_s >= _SILENT_S:
            return 0.0
        if now_s - self._asked_s >= _ASK_AGAIN_S:
            self._asked_s = now_s
            self._ask()
        return min(_LOOK_S, self._deadline_s - now_s)
