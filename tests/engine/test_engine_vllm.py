"""What is vLLM's own: its routes, its word on commands that it cannot obey, an idle engine, a gate that is full."""

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from engine_client import EngineClient
from engine_load import first_turn, next_turn
from engine_scene import TIMEOUT_S, Bus, Scene, play, refuses_to_move, talk
from engine_server import ROOT, EngineServer
from engine_versions import VLLM, vllm_only
from support.daemon_process import eventually
from tiny_model import words
from vllm_server import MAX_HELD

from controlplane.core.commands import Release, Retain
from controlplane.core.events import CommandApplied, FirstToken, PoolSampled, TurnEnded, TurnQueued
from controlplane.core.types import seconds
from engine_hooks.vllm.targets import SUPPORTED_VERSIONS, TARGETS

pytestmark = vllm_only
WINDOW_OF_ONE = 'preset = "fcfs"\n[admission]\nwindow = 1\n'
SAY_IT = [{"role": "user", "content": words(901, 50)}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAY_IT, "max_tokens": 8},
    "/v1/completions": {"prompt": words(902, 50), "max_tokens": 8},
    "/v1/responses": {"input": words(903, 50), "max_output_tokens": 8},
    "/v1/messages": {"messages": SAY_IT, "max_tokens": 8},
}


def test_every_target_is_found(engine_env: Path, engine_version: str) -> None:
    command = [engine_env / "bin" / "python", "-W", "ignore", "-m", "engine_hooks.vllm.verify"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    said = done.stdout.splitlines()
    version = engine_version.removeprefix(VLLM)
    tested = "tested" if version in SUPPORTED_VERSIONS else "not tested"
    assert f"vLLM {version}: {tested} " in done.stdout, done.stdout + done.stderr
    assert len([line for line in said if line.startswith("found ")]) == len(TARGETS)
    assert said[-3:] == ["probe: works here", "gate: works here", "pins: works here"]
    assert done.returncode == 0


def test_gate_and_probe_are_in_place_and_scheduling_is_asynchronous(
    plugin_engine: EngineServer, engine_version: str
) -> None:
    async def story(client: EngineClient) -> None:
        health = await client.penstock()
        assert health["plugin"]["vllm"] == engine_version.removeprefix(VLLM)
        assert (health["plugin"]["passive_because"], health["scheduler"]["passive_because"]) == ("", "")

    talk(story, plugin_engine)
    said = plugin_engine.log
    for ready in ("penstock: gate ready", "penstock: probe on", "in AsyncScheduler"):
        assert said.count(ready) == 1, ready
    bad = ("stays off", "penstock: passive", "the hook")
    assert [line for line in said.splitlines() if any(word in line for word in bad)] == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", sorted(ROUTES))
def test_every_route_names_its_program(plugin_engine: EngineServer, bus: Bus, path: str, stream: bool) -> None:
    name = f"by{path.replace('/', '-')}-{stream}"

    async def story(scene: Scene) -> None:
        reply = await scene.post(path, {"model": "tiny", "stream": stream, **ROUTES[path]}, name)
        assert reply.status == 200
        queued = await scene.until(TurnQueued, program_id=name)
        ended = await scene.until(TurnEnded, program_id=name, turn_id=queued.turn_id)
        assert (ended.ok, ended.prompt_tokens) == (True, 50)
        if not stream:
            usage = reply.body["usage"]
            told = usage.get("completion_tokens", usage.get("output_tokens"))
            assert ended.output_tokens == told

    bus.daemon('preset = "fcfs"\n[admission]\nwindow = 8\n')
    play(story, plugin_engine, bus)


def test_a_gate_that_is_full_refuses_and_says_when_to_come_again(plugin_engine: EngineServer, bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        running = asyncio.ensure_future(scene.chat("runs", words(910, 60), output_tokens=1500))
        await scene.until(FirstToken, program_id="runs")
        held = [
            asyncio.ensure_future(scene.chat(f"held-{number}", words(911 + number, 60)))
            for number in range(MAX_HELD)
        ]

        async def full() -> bool:
            return bool((await scene.penstock())["held_turns"] == MAX_HELD)

        await eventually(full, what="full gate", timeout_s=TIMEOUT_S)
        refused = await scene.chat("refused", words(930, 60))
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) > 0
        for turn in held:
            turn.cancel()
        assert (await running).status == 200
        assert scene.heard(TurnEnded, program_id="refused") == []

    bus.daemon(WINDOW_OF_ONE)
    play(story, plugin_engine, bus)


def test_what_vllm_cannot_do_is_rejected_with_the_reason(plugin_engine: EngineServer, bus: Bus) -> None:
    async def story(scene: Scene) -> None:
        await first_turn(scene, "known", seed=940)
        await refuses_to_move(
            scene, "known", "vLLM moves contexts below the device by itself: no call of it moves one"
        )

    bus.daemon()
    play(story, plugin_engine, bus)


def test_turn_after_turn_is_held_pinned_and_let_go(plugin_engine: EngineServer, bus: Bus) -> None:
    """The daemon retains, so that each context is held from its turn's end; in the end nothing is left pinned."""

    async def story(scene: Scene) -> None:
        await first_turn(scene, "first", seed=960)
        (retain,) = await scene.say(Retain(program_id="first", ttl_ns=seconds(1)))
        await scene.until(CommandApplied, command_id=retain)
        for number in range(4):
            name = f"next-{number}"
            messages = await first_turn(scene, name, seed=961 + number)
            (retain,) = await scene.say(Retain(program_id=name, ttl_ns=seconds(30)))
            await scene.until(CommandApplied, command_id=retain)
            assert (await next_turn(scene, name, messages)).cached_tokens > 0
            (release,) = await scene.say(Release(program_id=name))
            released = await scene.until(CommandApplied, command_id=release)

        def all_let_go(event: PoolSampled) -> bool:
            held = event.total_blocks - event.free_blocks - event.evictable_blocks
            return event.sequence > released.sequence and held == event.retained_blocks == 0

        await scene.until(PoolSampled, where=all_let_go)

    bus.daemon()
    play(story, plugin_engine, bus)
