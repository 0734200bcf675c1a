"""Who watches decisions."""

import asyncio

from controlplane.core.model.commands import Admit, Pause, SetWindow
from controlplane.daemon.status import decisions as module
from controlplane.daemon.status.decisions import Decision, Decisions


async def test_each_watcher_gets_what_it_asked_for() -> None:
    told = Decisions()
    everything, one = told.watch(), told.watch("a")
    asked = [asyncio.ensure_future(anext(everything)), asyncio.ensure_future(anext(one))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    told.record([SetWindow(limit=1, window=1.0), Admit(program_id="b", ttl_ns=1), Pause(program_id="a")], 5)
    assert await asked[0] == Decision(at_ns=5, command=SetWindow(limit=1, window=1.0))
    assert (await anext(everything)).command == Admit(program_id="b", ttl_ns=1)
    assert (await asked[1]).command == Pause(program_id="a")
    await everything.aclose()  # type: ignore[attr-defined]
    await one.aclose()  # type: ignore[attr-defined]
    told.record([SetWindow(limit=2, window=2.0)], 6)  # nobody is left to hear it


async def test_a_slow_watcher_misses_the_oldest_and_is_told_how_many() -> None:
    told = Decisions()
    watching = told.watch()
    first = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    extra = 3
    told.record([SetWindow(limit=n, window=0.0) for n in range(1, module.MOST_WAITING + extra + 1)], 1)
    decision = await first
    assert decision.command == SetWindow(limit=extra + 1, window=0.0)
    assert decision.missed == extra
    assert (await anext(watching)).missed == 0
