"""What becomes of each task of the daemon: nothing but its own end ends it.

The daemon ends when it is told to, when a daemon that started later has replaced it, and where an address that its
operator named cannot be listened at (``Daemon.stop``). Before it is up, whatever it cannot do without ends it, too.
From then on a task that raises is started again after a while, which grows up to what ``FATES`` says.
"""

import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import current_time, sleep

from controlplane.daemon.process.logs import logger

FATES = {
    "decisions": 1.0,  # events in, commands out; heartbeats stop meanwhile, and gates admit as without a daemon
    "heartbeats": 1.0,
    "host probe": 5.0,
    "status": 5.0,
    "stream": 1.0,
    "config watch": 30.0,
    "shadow estimates": 30.0,
    "health": 5.0,
    "samples": 5.0,
    "nats-server": 1.0,
    "page and control API": 5.0,  # and what the supervisor is told
    "hooks": 5.0,
    "spans": 5.0,
    # Of a fleet's daemon:
    "picker": 1.0,
    "roster told": 1.0,
    "engine checks": 1.0,
    "preferred lead": 5.0,
    "roster": 5.0,
    "lease": 1.0,
    "Kubernetes engines": 30.0,
    "Kubernetes leader": 30.0,
    # Of a gate outside:
    "upstream": 5.0,
    "engine API": 5.0,
}
"""By task: the longest time in seconds until it is started again. None of them is fatal."""

_Result = TypeVar("_Result")
_FIRST_S = 0.05
_SPELL_S = 60.0  # failures that are no further apart are one spell: it is logged once


@dataclass(slots=True, kw_only=True)
class Failure:
    """Errors of one kind: how many there were, which was the last, and whether they go on."""

    what: str
    count: int = 0
    error: str = ""
    failing: bool = False


class Failures:
    """Counts the errors that ended nothing, by what raised them."""

    def __init__(self) -> None:
        self._known: dict[str, Failure] = {}
        self._last_s: dict[str, float] = {}
        self._log = logger("daemon")

    def note(self, what: str, error: Exception, action: str) -> None:
        """Count it, and log the first one of a spell."""
        known, now_s = self._known.setdefault(what, Failure(what=what)), time.monotonic()
        known.count += 1
        known.error = described(error)
        begins, self._last_s[what] = not self._is_failing(what), now_s
        if begins:
            self._log.error("failed", what=what, error=known.error, count=known.count, action=action)

    def attempt(self, what: str, work: Callable[[], _Result], otherwise: _Result) -> _Result:
        """What ``work`` returns; where it raises, ``otherwise``."""
        try:
            return work()
        except Exception as error:
            self.note(what, error, "going on without it")
            return otherwise

    def rows(self) -> tuple[Failure, ...]:
        for what, known in self._known.items():
            known.failing = self._is_failing(what)
        return tuple(self._known.values())

    def _is_failing(self, what: str) -> bool:
        return what in self._last_s and time.monotonic() - self._last_s[what] < _SPELL_S


class Tasks:
    """Runs the tasks of ``FATES``."""

    def __init__(self) -> None:
        self.failures = Failures()

    async def keep(self, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        """Run ``work`` until it returns or is cancelled; again whenever it raises."""
        longest_s, pause_s = FATES[name], _FIRST_S
        while True:
            began_s = current_time()
            try:
                await work()
                return
            except Exception as error:
                if current_time() - began_s > longest_s:
                    pause_s = _FIRST_S
                self.failures.note(name, error, "starting it again")
            await sleep(pause_s)
            pause_s = min(longest_s, 2 * pause_s)


def described(error: Exception) -> str:
    """The error in a line, with the place that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].name}, line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:200]}{place}"
