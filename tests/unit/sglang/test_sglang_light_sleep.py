"""The sleep of an idle SGLang: Python's own poller stands for ZeroMQ's."""

import select
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from engine_hooks.guard import Guard
from engine_hooks.sglang.light_sleep import LightSleep, lighten

LONG_MS = 60_000  # far longer than a test lasts


def sleeper() -> SimpleNamespace:
    """What SGLang's is for us."""
    return SimpleNamespace(poller=select.poll())


def light(due_ns: Callable[[], int | None] = lambda: None, guard: Guard | None = None) -> LightSleep:
    made = lighten(SimpleNamespace(idle_sleeper=sleeper()), due_ns, guard or Guard())
    assert made is not None
    return made


def test_whoever_was_woken_sleeps_again() -> None:
    sleep = light()
    sleep.wake()
    sleep.wake()
    assert sleep.poll(LONG_MS)
    assert sleep.poll(0) == []


def test_a_deadline_that_is_over_and_stays_makes_nobody_spin() -> None:
    sleep = light(lambda: 0)
    began_ns = time.monotonic_ns()
    sleep.poll(LONG_MS)
    assert time.monotonic_ns() - began_ns >= 1_000_000


def test_where_the_deadline_cannot_be_told_the_engine_sleeps_as_ever() -> None:
    def broken() -> int | None:
        raise RuntimeError("it cannot")

    guard = Guard()
    assert light(broken, guard).poll(1) == []
    assert guard.failures == {"poll": 1}


@pytest.mark.parametrize("sleeps_at", [None, SimpleNamespace()], ids=["never sleeps", "at no poller"])
def test_an_engine_that_sleeps_otherwise_is_left_alone(sleeps_at: SimpleNamespace | None) -> None:
    assert lighten(SimpleNamespace(idle_sleeper=sleeps_at), lambda: None, Guard()) is None
    assert lighten(SimpleNamespace(), lambda: None, Guard()) is None
