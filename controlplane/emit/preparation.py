"""An environment that is made shortly before its program's turn comes (ThunderAgent §4.4).

If environments were made too early, those of programs that wait for minutes would fill the host. If they were made
at the first tool, the program would wait once more. The daemon knows whose turn is near. Without a daemon the
environment is made at once.
"""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from controlplane.emit.slot_wait import SlotWait

T = TypeVar("T")


class Preparation(Generic[T]):
    """One program's environment, made in its own thread.

    ``make`` makes it, and ``dispose`` takes one back that is not needed after all. ``wait`` makes the object that
    waits for the daemon's word.
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
        """The environment, made now if it was not before. Raises what ``make`` raised, or ``TimeoutError``."""
        with self._changed:
            self._cancelled = False
            self._wait.answer()
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
        """Start making the environment: the program's turn is near."""
        self._cancelled = False
        self._wait.answer()

    def cancel(self) -> None:
        """Dispose of the environment: the program has left the queue, though it may come back."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()

    def close(self) -> None:
        """End the preparation with its program: an environment that nobody took is disposed of."""
        with self._changed:
            if self._over:
                return
            self._over = self._cancelled = True
            self._wait.answer()
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
