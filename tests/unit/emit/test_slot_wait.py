"""Waiting for a slot of the host: an answer, no answer, and nobody there to give one. The daemon is a double."""

import asyncio
import threading
import time
from itertools import pairwise

import pytest

from controlplane.emit import slot_wait
from controlplane.emit.slot_wait import SlotWait

both = pytest.mark.parametrize("how", ["thread", "task"])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_LOOK_S", 0.01), ("_ASK_AGAIN_S", 0.05), ("_SILENT_S", 0.1)):
        monkeypatch.setattr(slot_wait, name, value)


def waiting(asked: list[float], *, alive: bool = True, patience_s: float = 5.0) -> SlotWait:
    return SlotWait(lambda: asked.append(time.monotonic()), lambda: time.monotonic() if alive else 0.0, patience_s)


async def run(wait: SlotWait, how: str) -> float:
    began_s = time.monotonic()
    if how == "thread":
        wait.block()
    else:
        await wait.until_answered()
    return time.monotonic() - began_s


@both
async def test_it_asks_until_it_is_told(how: str) -> None:
    asked: list[float] = []

    def ask() -> None:
        asked.append(time.monotonic())
        if len(asked) == 3:
            threading.Thread(target=wait.answer).start()

    wait = SlotWait(ask, time.monotonic, 60.0)
    await run(wait, how)
    assert wait.is_answered
    assert len(asked) >= 3
    assert all(later - earlier >= 0.05 for earlier, later in pairwise(asked))


@both
async def test_an_answer_that_is_there_already_is_not_waited_for(how: str) -> None:
    asked: list[float] = []
    wait = waiting(asked)
    wait.answer()
    await run(wait, how)
    assert not asked


@both
async def test_a_silent_daemon_is_not_waited_for(how: str) -> None:
    wait = waiting([], alive=False, patience_s=600)
    assert 0.05 < await run(wait, how) < 60  # patience would be ten minutes
    assert not wait.is_answered


@both
async def test_patience_ends(how: str) -> None:
    asked: list[float] = []
    wait = waiting(asked, patience_s=0.3)
    assert await run(wait, how) > 0.25
    assert not wait.is_answered
    assert asked


def test_an_answer_after_its_loop_has_ended_harms_nobody() -> None:
    wait = waiting([], patience_s=0.02)
    asyncio.run(wait.until_answered())
    wait.answer()
    assert wait.is_answered
