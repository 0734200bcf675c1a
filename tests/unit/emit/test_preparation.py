"""An environment that is made when its turn nears, cancelled, taken, failed; the daemon is a double."""

import threading
import time
from collections.abc import Callable

import pytest

from controlplane.emit import slot_wait
from controlplane.emit.preparation import Preparation
from controlplane.emit.slot_wait import SlotWait


class Made:
    """Makes environments, and says what became of them."""

    def __init__(self, takes_s: float = 0.0, failure: BaseException | None = None) -> None:
        self.made: list[int] = []
        self.disposed: list[int] = []
        self.asked = 0
        self._takes_s = takes_s
        self._failure = failure

    def make(self) -> int:
        time.sleep(self._takes_s)
        self.made.append(len(self.made))
        if self._failure is not None:
            raise self._failure
        return self.made[-1]

    def preparation(self, alive: bool = True) -> Preparation[int]:
        def ask() -> None:
            self.asked += 1

        def wait() -> SlotWait:
            return SlotWait(ask, lambda: time.monotonic() if alive else 0.0, 60.0)

        return Preparation(self.make, self.disposed.append, wait)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def threads() -> int:
    return sum(thread.name == "penstock-prepare" for thread in threading.enumerate())


def test_it_is_made_when_the_turn_nears_and_taken_without_waiting() -> None:
    made = Made()
    preparation = made.preparation()
    until(lambda: made.asked == 1)
    time.sleep(0.05)
    assert made.made == []
    preparation.begin()
    until(lambda: made.made == [0])
    assert preparation.result(1) == 0
    assert preparation.result(1) == 0, "again"
    preparation.close()
    until(lambda: threads() == 0)
    assert made.disposed == [], "whoever took it has it"


def test_it_is_made_at_the_latest_when_it_is_needed() -> None:
    made = Made(takes_s=0.1)
    preparation = made.preparation()
    with pytest.raises(TimeoutError, match=r"no environment within 0\.02 s"):
        preparation.result(0.02)
    assert preparation.result() == 0
    until(lambda: threads() == 0)


def test_where_nobody_tells_it_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_wait, "_SILENT_S", 0.02)
    monkeypatch.setattr(slot_wait, "_LOOK_S", 0.01)
    made = Made()
    preparation = made.preparation(alive=False)
    until(lambda: made.made == [0])
    preparation.close()
    until(lambda: threads() == 0)
    assert made.disposed == [0]


def test_who_leaves_the_queue_gives_it_back_and_gets_another() -> None:
    made = Made()
    preparation = made.preparation()
    preparation.begin()
    until(lambda: made.made == [0])
    preparation.cancel()
    until(lambda: made.disposed == [0] and made.asked == 2)
    preparation.begin()
    assert preparation.result(5) == 1
    until(lambda: threads() == 0)


def test_a_program_that_ends_before_its_turn_made_nothing() -> None:
    made = Made()
    preparation = made.preparation()
    preparation.close()
    until(lambda: threads() == 0)
    assert (made.made, made.disposed) == ([], [])


def test_a_failure_is_raised_where_the_environment_is_needed() -> None:
    made = Made(failure=OSError("no room"))
    preparation = made.preparation()
    preparation.begin()
    until(lambda: made.made == [0])
    with pytest.raises(OSError, match="no room"):
        preparation.result(1)
    preparation.close()
    assert made.disposed == []
