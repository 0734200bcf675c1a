"""Ends the process whose event loop hangs, since what it holds can go on elsewhere only once it is gone."""

import asyncio
import faulthandler
import os
import sys
import threading
from contextlib import suppress

STATUS = 70  # of a process that ended so: an internal error, in the words of sysexits
_TICKS_A_SECOND = 4


class Watchdog:
    """A thread that looks whether the loop turns; if it has not for ``patience_s`` seconds, the process ends.

    It counts its own looks, not the clock's seconds: a process that was stopped as a whole and goes on is none that
    hangs. Where each thread was is told on standard error.
    """

    def __init__(self, patience_s: float = 3.0) -> None:
        self._patience = max(1, round(patience_s * _TICKS_A_SECOND))
        self._turned = True
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch the running loop. Call it in the loop's thread."""
        self._turn(asyncio.get_running_loop())
        threading.Thread(target=self._watch, name="penstock-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turned = True
        self._timer = loop.call_later(1 / _TICKS_A_SECOND, self._turn, loop)

    def _watch(self) -> None:
        missed = 0
        while not self._stopped.wait(1 / _TICKS_A_SECOND):
            missed = 0 if self._turned else missed + 1
            self._turned = False
            if missed >= self._patience:
                self._end(missed / _TICKS_A_SECOND)

    def _end(self, hung_s: float) -> None:
        with suppress(OSError, ValueError):  # a standard error that takes nothing must not keep the process
            sys.stderr.write(f"penstock: the event loop has hung for {hung_s:g} s: the process ends\n")
            sys.stderr.flush()
            faulthandler.dump_traceback(all_threads=True)
        os._exit(STATUS)
