"""What an engine owes while it is idle: it obeys at once, and lets a pin go when its time is over."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from engine_load import first_turn
from engine_scene import Scene

from controlplane.core.commands import Retain
from controlplane.core.events import CommandApplied, PoolSampled
from controlplane.core.types import NANOSECONDS_PER_SECOND, seconds

TRIES = 5
TTL_S = 0.4
AT_ONCE_S = 0.3  # a machine may be busy, but not at every try; an engine that looks once a second is later at each


async def _retained(scene: Scene, ttl_s: float) -> CommandApplied:
    (command_id,) = await scene.say(Retain(program_id="idle", ttl_ns=seconds(ttl_s)))
    applied = await scene.until(CommandApplied, command_id=command_id)
    assert isinstance(applied, CommandApplied)
    return applied


def obeys(seed: int) -> Callable[[Scene], Coroutine[Any, Any, None]]:
    async def story(scene: Scene) -> None:
        await first_turn(scene, "idle", seed)
        took_s = []
        for _ in range(TRIES):
            began = time.monotonic()
            await _retained(scene, 60)
            took_s.append(time.monotonic() - began)
            await asyncio.sleep(0.1)  # the engine falls asleep again
        assert min(took_s) < AT_ONCE_S, took_s

    return story


def ends(seed: int) -> Callable[[Scene], Coroutine[Any, Any, None]]:
    async def story(scene: Scene) -> None:
        await first_turn(scene, "idle", seed)
        late_s = []
        for _ in range(TRIES):
            applied = await _retained(scene, TTL_S)
            ended = await scene.until(
                PoolSampled,
                where=lambda event, after=applied: event.at_ns > after.at_ns + seconds(TTL_S) - 1,
            )
            assert ended.retained_blocks == 0, "its end is told at once"
            late_s.append((ended.at_ns - applied.at_ns) / NANOSECONDS_PER_SECOND - TTL_S)
        assert min(late_s) < AT_ONCE_S, late_s

    return story
