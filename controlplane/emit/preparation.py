"""An environment that is made while its program waits for its turn, and not long before (ThunderAgent §4.4).

Made too early, environments of programs that wait for minutes fill the host; made at the first tool, the program
waits for it once more. The daemon knows whose turn nears. Where no daemon says so, it is made at once.
"""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from controlplane.emit.slot_wait import SlotWait

T = TypeVar("T")


class Preparation(Generic[T]):
    """One program's environment, made in a thread of its own.

    ``make`` makes it; ``dispose`` takes one back that is not needed after all. ``wait`` makes the waiting for the
    daemon's word.
    """

    def __init__(
        self, make: Callable[[], T], dispose: Callable[[T], object] | None, wait: Callable[[], SlotWait]
    ) -> None:
        self._make = make
        self._dispose = dispose
        self._wait_again = wait
        self._changed = threading.Condition()
        self._wait = wait()
        self._outcome: tuple[T | None, BaseException | None] | None = None
        self._cancelled = False  # the outcome is not needed now
        self._over = False  # it was taken, or never will be
        threading.Thread(target=self._run, name="penstock-prepare", daemon=True).start()

    def result(self, timeout_s: float | None = None) -> T:
        """The environment, made now if it was not yet. Raises what ``make`` raised, or ``TimeoutError``."""
        with self._changed:
            self._cancelled = False
            self._wait.tell()
            if not self._changed.wait_for(lambda: self._outcome is not None, timeout_s):
                raise TimeoutError(f"no environment within {timeout_s:g} s")
            assert self._outcome is not None
            made, error = self._outcome
            self._over = True
            self._changed.notify_all()
        if error is not None:
            raise error
        return made  # type: ignore[return-value]

    def begin(self) -> None:
        """The program's turn nears."""
        self._cancelled = False
        self._wait.tell()

    def cancel(self) -> None:
        """The program has left the queue; it may come back."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()

    def close(self) -> None:
        """The program is over: what was made and not taken goes."""
        with self._changed:
            if self._over:
                return
            self._over = self._cancelled = True
            self._wait.tell()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            self._wait.block()
            if self._over:
                return
            made: tuple[T | None, BaseException | None]
            try:
                made = (self._make(), None)
            except BaseException as error:  # whoever asks for the result is to see it
                made = (None, error)
            with self._changed:
                self._outcome = made
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._over or self._cancelled)
                if not self._cancelled:
                    return
                self._outcome, self._cancelled = None, False
                self._wait = self._wait_again()
            self._take_back(made)
            if self._over:
                return

    def _take_back(self, made: "tuple[T | None, BaseException | None]") -> None:
        value: Any = made[0]
        if made[1] is None and self._dispose is not None:
            try:
                self._dispose(value)
            except Exception:
                return  # its keeper will take it back when the program ends
