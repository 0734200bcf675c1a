"""Agents without an adapter: more of them than the pool holds, that send their program's id and nothing else."""

import asyncio
import json
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from engine_scene import Bus, Scene, play
from engine_server import POOL_TOKENS, EngineServer

from controlplane.core.events import HostSampled, TurnEnded, TurnQueued, TurnSubmitted

MARS = 'preset = "mars"\n'
CLIENT = Path(__file__).with_name("stranger.py")
CLIENT_TIMEOUT_S = 150.0  # most of it is the tools' sleep
PROGRAMS = 6
IDLE_HOLD_S = 10.0  # nobody waits so long before an engine that has nothing to do

Interval = tuple[int, int]


def asked_of(number: int) -> dict[str, Any]:
    """A program that grows to a fifth of the pool; the first one's tool takes longer than any silence is borne."""
    gaps_s = [1.0, 12.0] if number == 0 else [3.0, 2.0]
    return {
        "name": f"stranger-{number}",
        "after_s": 0.2 * number,
        "gaps_s": gaps_s,
        "first_tokens": 600,
        "grows_tokens": 120,
        "output_tokens": 16,
    }


def run_strangers(environment: Path, url: str, programs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outcomes of all of them."""
    command = [environment / "bin" / "python", CLIENT, json.dumps({"url": url, "programs": programs})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_TIMEOUT_S, env={})
    assert done.returncode == 0, done.stderr
    outcomes: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


def holds(scene: Scene, programs: Iterable[str]) -> Iterator[tuple[str, Interval]]:
    """Each turn that was held, from when it was first queued to when it was let in."""
    let_in = {event.turn_id: event.at_ns for event in scene.heard(TurnSubmitted)}
    for program_id in programs:
        queued_ns: dict[str, int] = {}
        for queued in scene.heard(TurnQueued, program_id=program_id):
            queued_ns.setdefault(queued.turn_id, queued.at_ns)  # it is told again while it is held
        for turn_id, since_ns in queued_ns.items():
            yield f"{program_id}: {turn_id}", (since_ns, let_in[turn_id])


def idle_ns(scene: Scene, within: Interval) -> int:
    """How long the engine had no turn at all in that time."""
    ended = {event.turn_id: event.at_ns for event in scene.heard(TurnEnded)}
    busy = sorted((event.at_ns, ended[event.turn_id]) for event in scene.heard(TurnSubmitted))
    now_ns, end_ns = within
    idle = 0
    for began_ns, done_ns in busy:
        idle += max(0, min(began_ns, end_ns) - now_ns)
        now_ns = max(now_ns, min(done_ns, end_ns))
    return idle + end_ns - now_ns


def test_strangers_all_end_and_none_waits_before_an_idle_engine(
    plugin_engine: EngineServer, engine_env: Path, bus: Bus
) -> None:
    asked = [asked_of(number) for number in range(PROGRAMS)]
    names = [one["name"] for one in asked]

    async def story(scene: Scene) -> None:
        scene.programs.update(names)
        await scene.until(HostSampled)
        outcomes = await asyncio.to_thread(run_strangers, engine_env, scene.url, asked)
        assert [outcome["error"] for outcome in outcomes] == [""] * PROGRAMS, "none is refused"
        assert [len(outcome["prompt_tokens"]) for outcome in outcomes] == [len(one["gaps_s"]) + 1 for one in asked]
        assert sum(outcome["prompt_tokens"][-1] for outcome in outcomes) > POOL_TOKENS, "they do not all fit"
        for one in asked:
            await scene.until(TurnEnded, len(one["gaps_s"]) + 1, program_id=one["name"], ok=True)
        health = await scene.penstock()
        assert (health["held_turns"], health["running_turns"]) == (0, 0)
        held_s = {turn: round(idle_ns(scene, hold) / 1e9, 1) for turn, hold in holds(scene, names)}
        late = {turn: idle_s for turn, idle_s in held_s.items() if idle_s > IDLE_HOLD_S}
        assert late == {}, f"held while the engine was idle, in s: {held_s}"

    bus.daemon(MARS)
    play(story, plugin_engine, bus)
