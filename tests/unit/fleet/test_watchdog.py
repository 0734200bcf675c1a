"""When the watchdog ends a process: its thread's looks, without waiting for them."""

import asyncio

import pytest

from controlplane.fleet import watchdog
from controlplane.fleet.watchdog import Watchdog


async def test_a_loop_that_turns_is_left_alone_and_one_that_does_not_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    looks = iter([False] * 30 + [True])
    it = Watchdog(patience_s=1.0)
    monkeypatch.setattr(watchdog.os, "_exit", ended.append)
    monkeypatch.setattr(watchdog.faulthandler, "dump_traceback", lambda **_: None)

    def wait(_: float) -> bool:
        it._turned = True  # as the loop does
        return next(looks)

    monkeypatch.setattr(it._stopped, "wait", wait)
    it._watch()
    assert ended == []
    looks = iter([False] * 4 + [True])
    monkeypatch.setattr(it._stopped, "wait", lambda _: next(looks))
    it._turned = False
    it._watch()
    assert ended == [watchdog.STATUS]


async def test_it_starts_in_the_loop_and_stops() -> None:
    it = Watchdog(patience_s=60.0)
    it.start()
    await asyncio.sleep(0)
    it.stop()
