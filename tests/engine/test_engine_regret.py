"""The regret ledger beside the engine's own counters: what a run under pressure computed again, and missed."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from engine_client import Messages, Reply
from engine_scene import Bus, Scene, playing
from engine_server import EngineServer
from engine_versions import KIND, on
from support.daemon_process import eventually
from tiny_model import words

from controlplane.core.model.events import PinReclaimed, ProgramEnded, ToolEnded, ToolStarted, TurnEnded
from controlplane.core.model.types import seconds
from controlplane.core.regret.returns import LEAST_LOST_TOKENS

PROGRAMS, TURNS = 8, 4
FIRST_TOKENS, NEXT_TOKENS, OUTPUT_TOKENS = 300, 150, 100
TOOL_S = 0.2
T = TypeVar("T")


@dataclass(slots=True)
class Told:
    """What the engine's replies say of one program."""

    known_tokens: int = 0  # computed by now, the last reply's last token too: SGLang's steps overlap
    new_tokens: int = 0  # of its prompts, that nobody had computed before
    misses: int = 0  # turns that did not find all of it

    def add(self, reply: Reply) -> None:
        self.new_tokens += reply.prompt_tokens - self.known_tokens
        self.misses += self.known_tokens - reply.cached_tokens >= LEAST_LOST_TOKENS
        self.known_tokens = reply.prompt_tokens + reply.output_tokens


async def program(
    scene: Scene,
    name: str,
    seed: int,
    *,
    turns: int = TURNS,
    first_tokens: int = FIRST_TOKENS,
    output_tokens: int = OUTPUT_TOKENS,
    **asked: int,
) -> Told:
    """A program to its end: turns, and tools between them that its runtime reports. ``asked``: of each turn."""
    told, messages = Told(), Messages()
    for turn in range(turns):
        if turn:
            call = {"program_id": name, "call_id": f"{name}.{turn}", "tool": "bash"}
            await scene.publish(ToolStarted(**call))
            await asyncio.sleep(TOOL_S)
            await scene.publish(ToolEnded(**call, duration_ns=seconds(TOOL_S)))
        text = words(seed + 50 * turn, NEXT_TOKENS if turn else first_tokens)
        messages.append({"role": "user", "content": text})
        reply = await scene.chat(name, messages, output_tokens=output_tokens, **asked)
        assert (reply.status, reply.output_tokens) == (200, output_tokens)
        messages.append({"role": "assistant", "content": reply.text})
        told.add(reply)
    await scene.until(TurnEnded, count=turns, program_id=name)
    await scene.publish(ProgramEnded(program_id=name))
    return told


async def prefilled_tokens(scene: Scene) -> float:
    """As the engine counts: SGLang those of each prefill's step, vLLM those of a prompt's first prefill."""
    sglang, vllm = [await scene.metrics(label) for label in ('mode="prefill_compute"', 'source="local_compute"')]
    return sglang["realtime_tokens_total"] + vllm["prompt_tokens_by_source_total"]


async def all_of(scene: Scene, label: str, seed: int, **more: int) -> tuple[list[Told], float]:
    """Programs that come at once; then the tokens that the engine prefilled more than once."""
    await scene.flush()
    before = await prefilled_tokens(scene)
    names = [f"{label}-{number}" for number in range(PROGRAMS)]
    told = await asyncio.gather(*(program(scene, name, seed + n, **more) for n, name in enumerate(names)))
    new_tokens = sum(each.new_tokens for each in told)
    return told, await prefilled_tokens(scene) - before - new_tokens


async def at_one_moment(scene: Scene, turns: Coroutine[Any, Any, T]) -> T:
    """What becomes of the first turns of all programs if SGLang takes them in one step, on a slow machine too."""

    async def all_wait() -> bool:
        return bool((await scene.penstock())["running_turns"] == PROGRAMS)

    await scene.post("/pause_generation", {"mode": "in_place"})
    try:
        asked = asyncio.ensure_future(turns)
        await eventually(all_wait, what="turns before the paused engine")
    finally:
        await scene.post("/continue_generation", {})
    return await asked


def regret(record: Path) -> Any:
    """What ``penstock regret`` says of a recorded run, by cause."""
    command = [sys.executable, "-m", "controlplane", "regret", "--by", "cause", "--json", str(record)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("preset", ["penstock", "continuum"])
async def test_its_sums_are_the_engines_counters(
    plugin_engine: EngineServer, bus: Bus, preset: str, tmp_path: Path
) -> None:
    """Eight programs, whose contexts grow to two and a half times the pool."""
    record = tmp_path / "run.jsonl"
    seen: dict[str, Any] = {}
    daemon = bus.daemon(f'preset = "{preset}"\n', "--record", str(record))
    async with playing(plugin_engine, bus) as scene:
        told, seen["again"] = await all_of(scene, preset, seed=1000)
        seen["misses"] = sum(each.misses for each in told)
        seen["reclaimed"] = len(scene.heard(PinReclaimed))
    daemon.stop()
    said = regret(record)
    again_tokens = said["total"]["again_tokens"]
    if KIND.name == "vllm":
        again_tokens -= sum(row["again_tokens"] for row in said["rows"] if row["name"] == "retracted")
    assert again_tokens == pytest.approx(seen["again"], rel=0.01)
    assert sum(row["misses"] for row in said["rows"] if row["name"] != "retracted") == seen["misses"]
    # A pin that another one replaces before its loss is heard of is judged as replaced.
    reclaimed = sum(row["count"] for row in said["rows"] if row["name"] == "reclaimed")
    assert reclaimed <= seen["reclaimed"]


@on("sglang")
async def test_what_a_retraction_cost_is_in_them(plugin_engine: EngineServer, bus: Bus, tmp_path: Path) -> None:
    """SGLang lets in who will write more than there is room for, and has to throw some of them out."""
    record = tmp_path / "run.jsonl"
    seen: dict[str, Any] = {}
    daemon = bus.daemon('preset = "fcfs"\n', "--record", str(record))
    async with playing(plugin_engine, bus) as scene:
        # Of one that ignores its end SGLang 0.5.23 knows how much it will write, and keeps room for it.
        sizes = {"turns": 1, "first_tokens": 200, "output_tokens": 400, "ignore_eos": False, "min_tokens": 400}
        before = (await scene.metrics())["num_retracted_requests_total"]
        _, seen["again"] = await at_one_moment(scene, all_of(scene, "long", seed=1400, **sizes))
        seen["retractions"] = (await scene.metrics())["num_retracted_requests_total"] - before
        seen["told"] = sum(event.recomputed_tokens for event in scene.heard(TurnEnded))
    daemon.stop()
    said = regret(record)
    assert seen["retractions"] >= 1
    assert seen["told"] == pytest.approx(seen["again"], rel=0.01)
    assert said["total"]["again_tokens"] == pytest.approx(seen["again"], rel=0.01)
