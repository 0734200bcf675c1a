"""The board that the scheduler's process writes on and the HTTP process reads."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.emit.emitter import Emitter
from engine_hooks.engine.board import VARIABLE, HealthFile, account, post
from engine_hooks.guard import Guard, TimedGuard

TIMEOUT_S = 60.0


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
    assert post(Teller()) is None, "there is no board"
    board, teller = HealthFile(), Teller()
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


def test_each_scheduler_has_a_place_that_every_http_process_reads() -> None:
    board = HealthFile()
    for told in ("a long one" * 100, "of 1"):  # a shorter text replaces a longer one whole
        teller = iter([told])
        post(lambda told=teller: next(told), slot=lambda: 1, every_s=0.01)  # type: ignore[misc]
        until(lambda told=told: board.read(1) == told)  # type: ignore[misc]
    post(lambda: "of 0", every_s=0.01)
    until(lambda: board.read() is not None)
    of_a_child = HealthFile(shared=True)
    assert [of_a_child.read(slot) for slot in range(3)] == ["of 0", "of 1", None]


def test_what_makes_no_sense_is_read_as_nothing() -> None:
    board = HealthFile()
    file = os.open(os.environ[VARIABLE], os.O_WRONLY)
    os.pwrite(file, b'{"torn', 0)
    os.close(file)
    assert board.read() is None


def test_a_process_tells_of_its_hooks_and_its_emitter_and_no_password() -> None:
    guard, timed = Guard(), TimedGuard()
    for each in (guard, timed):
        assert each.run("f", int, "no number") is None
        assert each.run("g", int, "7") == 7
    assert account(guard, None) == {"hook_failures": {"f": 1}, "emitter": None}
    times: Any = account(timed, None)["hook_times"]
    assert times["g"]["calls"] == times["f"]["calls"] == 1
    assert 0 < times["g"]["longest_ns"] <= times["g"]["total_ns"]
    stats = Emitter(url="nats://host:1", node="n", role="engine").stats
    emitter: Any = SimpleNamespace(stats=replace(stats, last_error="at nats://me:secret@host:1"))
    told: Any = account(guard, emitter)["emitter"]
    assert (told["connected"], told["last_error"]) == (False, "at nats://***@host:1")
