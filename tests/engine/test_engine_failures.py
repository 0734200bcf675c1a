"""kill -9 of the daemon and of the nats-server in the middle of a load: no request may fail of it."""

import asyncio

from engine_client import Reply
from engine_load import first_turn
from engine_scene import TIMEOUT_S, Bus, Scene, playing
from engine_server import EngineServer
from support.daemon_process import eventually
from tiny_model import words

from controlplane.core.model.commands import Retain
from controlplane.core.model.events import CommandApplied, PoolSampled, ProgramEnded, TurnEnded
from controlplane.core.model.types import seconds

QUICK = """
preset = "fcfs"
heartbeat_s = 0.1
lease_s = 1.0
[admission]
window = 2
[control]
interval_s = 0.2
[control.silence]
unused_slot_s = 2.0
"""
PROGRAMS = 6


async def agent(scene: Scene, number: int, stop: asyncio.Event, replies: list[Reply]) -> list[Reply]:
    """Turns, one after another, until ``stop``, then the end; ``replies`` are what it got so far."""
    while not stop.is_set():
        text = words(700 + 100 * number + len(replies), 200)
        replies.append(await scene.chat(f"f{number}", text, output_tokens=60, stream=number % 2 == 0))
    await scene.publish(ProgramEnded(program_id=f"f{number}"))
    return replies


async def more_turns(scene: Scene, count: int) -> None:
    """Return once so many more turns ended, as the engine itself counts."""
    target = await scene.turns_done() + count
    async with asyncio.timeout(2 * TIMEOUT_S):
        while await scene.turns_done() < target:  # noqa: ASYNC110  nothing to wait for
            await asyncio.sleep(0.1)


async def test_no_request_fails_when_daemon_and_bus_are_killed_and_come_back(
    plugin_engine: EngineServer, bus: Bus
) -> None:
    daemon = bus.daemon(QUICK)
    async with playing(plugin_engine, bus) as scene:
        await first_turn(scene, "pinned", seed=690)
        (retain,) = await scene.say(Retain(program_id="pinned", ttl_ns=seconds(3)))
        await scene.until(CommandApplied, command_id=retain)
        stop = asyncio.Event()
        so_far: list[list[Reply]] = [[] for _ in range(PROGRAMS)]
        load = [asyncio.ensure_future(agent(scene, number, stop, so_far[number])) for number in range(PROGRAMS)]
        await more_turns(scene, 10)
        assert (await scene.penstock())["held_turns"] > 0, "the window holds some of them"

        daemon.kill()
        await more_turns(scene, 10)
        await asyncio.to_thread(bus.server.kill)
        await scene.mode("opening")
        await more_turns(scene, 20)
        assert (await scene.penstock())["counters"]["daemon_lost"] >= 1

        async def all_went_on() -> bool:
            return min(len(replies) for replies in so_far) >= 2

        await eventually(all_went_on, what="second turn of every program", timeout_s=TIMEOUT_S)

        await asyncio.to_thread(bus.server.restart)
        bus.announce()
        await asyncio.to_thread(bus.daemon, QUICK)
        await scene.mode("governed")
        late = asyncio.ensure_future(scene.chat("late", words(695, 100)))
        await more_turns(scene, 10)
        assert not late.done(), "the window is in force again for who comes now"
        stop.set()
        outcomes = await asyncio.gather(*load)
        assert (await late).status == 200
        statuses = [reply.status for replies in outcomes for reply in replies]
        assert statuses == [200] * len(statuses)

        await scene.listen()
        last = outcomes[0][-1]
        await scene.until(TurnEnded, program_id="f0", prompt_tokens=last.prompt_tokens)
        await scene.until(PoolSampled, where=lambda event: event.retained_blocks == 0 and event.turns_running == 0)
        assert plugin_engine.is_healthy()
