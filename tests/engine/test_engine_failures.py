"""kill -9 of the daemon and of the nats-server in the middle of a load: no request may fail of it."""

import asyncio
import os
import signal
from pathlib import Path

from engine_client import EngineClient, Reply
from engine_load import first_turn
from engine_scene import NODE, TIMEOUT_S, Bus, Scene, play, talk
from engine_server import EngineServer
from engine_versions import every_engine
from support.daemon_process import DaemonProcess, eventually
from tiny_model import words

from controlplane.core.commands import Retain
from controlplane.core.events import CommandApplied, PoolSampled, ProgramEnded, TurnEnded
from controlplane.core.types import seconds
from controlplane.wire.endpoint import endpoint_path, read_endpoint

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


@every_engine
def test_no_request_fails_when_daemon_and_bus_are_killed_and_come_back(
    plugin_engine: EngineServer, bus: Bus
) -> None:
    async def story(scene: Scene) -> None:
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

    daemon = bus.daemon(QUICK)
    play(story, plugin_engine, bus)


@every_engine
def test_the_daemons_own_nats_server_is_found_killed_and_found_again(
    plugin_engine: EngineServer, engine_state_dir: Path
) -> None:
    """As users run it: ``penstock up`` alone, and the engine reads the endpoint file."""
    config = engine_state_dir / "quick.toml"
    config.write_text(QUICK)
    daemon = DaemonProcess(engine_state_dir, "--config", str(config), node=NODE)

    def server_pid() -> int:
        endpoint = read_endpoint(NODE, engine_state_dir)
        return endpoint.pid if endpoint is not None else 0

    async def is_another(old: int) -> bool:
        return server_pid() not in (0, old)

    async def is_heard(client: EngineClient) -> bool:
        health = await client.penstock()
        return bool(health["emitter"]["connected"] and health["mode"] == "governed")

    async def ask(client: EngineClient, turn: int) -> None:
        assert (await client.chat("embedded", words(680 + turn, 100))).status == 200

    async def story(client: EngineClient) -> None:
        before = await client.boot_id()
        daemon.start()
        await client.governed_anew(before)
        await ask(client, 0)
        old = server_pid()
        assert old != 0
        os.kill(old, signal.SIGKILL)
        await eventually(lambda: is_another(old), what="new nats-server", timeout_s=TIMEOUT_S)
        await ask(client, 1)
        await eventually(lambda: is_heard(client), what="heartbeat through the new server", timeout_s=TIMEOUT_S)
        daemon.kill()
        await client.mode("opening")
        await ask(client, 2)
        daemon.start()
        await client.mode("governed")
        await ask(client, 3)

    try:
        talk(story, plugin_engine)
    finally:
        daemon.clean_up()
        endpoint_path(NODE, engine_state_dir).unlink(missing_ok=True)
