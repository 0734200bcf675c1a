"""An idle SGLang's sleep, which commands and deadlines end as well as requests do.

Without ``--sleep-on-idle`` an idle scheduler goes round without a pause and sees both at once. With it, it waits at
its sockets for a request, a second at most: whatever was asked of it meanwhile came up to a second late, and so did
the end of a pin. Here one thing more is put beside those sockets that can end the wait, and no wait lasts beyond
the next deadline. It is no request of ours: a request would have to have the form of this SGLang's version, would
count as activity, and might be answered.
"""

import contextlib
import os
import select
import time
from collections.abc import Callable
from typing import Any

from engine_hooks.guard import Guard

_NS_PER_MS = 1_000_000


class LightSleep:
    """Stands where SGLang's sleeper has its poller, of which it uses ``poll`` alone.

    :param poller: the engine's own, with its sockets.
    :param due_ns: when the plugin has something to do next, by the monotonic clock; None: nothing.
    """

    def __init__(self, poller: Any, due_ns: Callable[[], int | None], guard: Guard) -> None:
        self._poller = poller
        self._due_ns = due_ns
        self._guard = guard
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        poller.register(self._bell, select.POLLIN)  # ZeroMQ's number for it is the same

    def wake(self) -> None:
        """End the sleep, or the next one. From any thread."""
        os.eventfd_write(self._bell, 1)

    def poll(self, timeout_ms: int) -> Any:
        """What the engine's poller finds within the time, or by the next deadline if that comes first."""
        left_ms = self._guard.run("poll", self._left_ms)
        found = self._poller.poll(timeout_ms if left_ms is None else min(timeout_ms, left_ms))
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        return found

    def _left_ms(self) -> int | None:
        """At least 1: whatever cannot be done when it is due must not make an idle engine spin."""
        due_ns = self._due_ns()
        return None if due_ns is None else max(1, -((time.monotonic_ns() - due_ns) // _NS_PER_MS))


def lighten(scheduler: Any, due_ns: Callable[[], int | None], guard: Guard) -> LightSleep | None:
    """Have this scheduler sleep so; None if it never sleeps, or not at a poller."""
    sleeper = getattr(scheduler, "idle_sleeper", None)
    poller = getattr(sleeper, "poller", None)
    if sleeper is None or poller is None:
        return None
    sleeper.poller = lightened = LightSleep(poller, due_ns, guard)
    return lightened
