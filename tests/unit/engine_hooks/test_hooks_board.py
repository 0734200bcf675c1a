"""The board that the scheduler's process writes on and the HTTP process reads."""

import os
import threading
import time
from collections.abc import Callable

import pytest

from controlplane.emit.emitter import Emitter
from engine_hooks.engine.board import VARIABLE, Board, account, post
from engine_hooks.guard import Guard, TimedGuard

TIMEOUT_S = 10.0


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")


class Teller:
    """Tells how often it was asked, and raises while told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.again = threading.Event()
        self.ends = False

    def __call__(self) -> object:
        if self.ends:
            raise RuntimeError("enough")
        self.asked += 1
        if self.asked > 1:
            self.again.set()
        return {"asked": self.asked}


def until(what: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_what_is_posted_can_be_read_also_behind_an_error(caplog: pytest.LogCaptureFixture) -> None:
    board, teller = Board(), Teller()
    assert board.read() is None
    thread = post(teller, every_s=0.001)
    assert thread is not None
    assert teller.again.wait(TIMEOUT_S), "it is asked again and again"
    assert board.read()["asked"] >= 1
    teller.ends = True
    until(lambda: "says nothing new of the scheduler: enough" in caplog.text)
    asked, teller.ends = teller.asked, False
    until(lambda: board.read()["asked"] > asked)
    teller.ends = True


def test_a_shorter_text_replaces_a_longer_one_whole() -> None:
    board = Board()
    for told in ("a long one" * 100, "short"):
        teller = iter([told])
        post(lambda told=teller: next(told), every_s=0.01)  # type: ignore[misc]
        until(lambda told=told: board.read() == told)  # type: ignore[misc]


def test_each_of_several_schedulers_has_a_place_of_its_own() -> None:
    board = Board()
    for slot in (1, 0):
        post(lambda slot=slot: f"of {slot}", slot=lambda slot=slot: slot, every_s=0.01)  # type: ignore[misc]
    until(lambda: board.read(0) is not None and board.read(1) is not None)
    assert (board.read(0), board.read(1), board.read(2)) == ("of 0", "of 1", None)


def test_each_of_several_http_processes_reads_their_parents() -> None:
    parents = Board()
    of_a_child = Board(shared=True)
    post(lambda: "told", slot=lambda: 1, every_s=0.01)
    until(lambda: parents.read(1) == of_a_child.read(1) == "told")


def test_without_a_board_nobody_posts() -> None:
    assert post(Teller()) is None


def test_what_makes_no_sense_is_read_as_nothing() -> None:
    board = Board()
    file = os.open(os.environ[VARIABLE], os.O_WRONLY)
    os.pwrite(file, b'{"torn', 0)
    os.close(file)
    assert board.read() is None


def test_a_process_tells_of_its_hooks_and_its_emitter() -> None:
    guard = Guard()
    guard.run("f", int, "no number")
    guard.run("g", int, "7")
    assert account(guard, None) == {"hook_failures": {"f": 1}, "emitter": None}
    told = account(guard, Emitter(url="nats://me:secret@host:1", node="n", role="engine"))
    assert told["emitter"]["connected"] is False  # type: ignore[index]


def test_a_guard_that_measures_tells_what_its_hooks_took() -> None:
    guard = TimedGuard()
    assert guard.run("g", int, "7") == 7
    guard.run("g", int, "no number")
    times = account(guard, None)["hook_times"]
    assert times["g"]["calls"] == 2  # type: ignore[index]
    assert 0 < times["g"]["longest_ns"] <= times["g"]["total_ns"]  # type: ignore[index]
