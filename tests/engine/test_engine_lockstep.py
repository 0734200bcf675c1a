"""Several ranks of one SGLang: each runs a scheduler, and all must decide alike.

``make soak WHAT=lockstep`` compares 10,000 steps. That which disturbs a rank comes last: nothing is steered after.
"""

import asyncio
import logging
import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_load import PROMPT_TOKENS, fill, first_turn, next_turn
from engine_scene import FCFS, TIMEOUT_S, Bus, Scene, playing, policies_told
from engine_server import POOL_TOKENS, ROOT, STARTUP, EngineServer, Launch
from engine_versions import on
from support.daemon_process import eventually
from tiny_model import words

from controlplane.core.model.commands import Discard, Label, ProgramCommand, Release, Retain
from controlplane.core.model.events import CommandApplied, CommandRejected, PoolSampled
from controlplane.core.model.types import seconds

pytestmark = on("sglang")
log = logging.getLogger("ranks")

STEPS = int(os.environ.get("PENSTOCK_TEST_LOCKSTEP_STEPS", "300"))
STEERING = 'preset = "fcfs"\n[priority]\npolicy = "mlfq"\n[memory]\npolicy = "opportunistic"\n'
DISTURB = Path(__file__).parent / "sglang_disturb"
PROGRAMS, AT_ONCE = 24, 6


@pytest.fixture(scope="module")
def disturb_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Once it is there the last rank is disturbed."""
    return tmp_path_factory.mktemp("disturb") / "now"


@pytest.fixture(scope="module")
def ranked_engine(launch: Launch, disturb_file: Path) -> Iterator[EngineServer]:
    """SGLang with two tensor-parallel ranks."""
    yield from launch(
        "ranks",
        *("--tp-size", "2"),
        plugins=("penstock_disturb",),
        variables={
            "PENSTOCK_DISTURB_FILE": str(disturb_file),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{STARTUP}{os.pathsep}{DISTURB}",
            "SGLANG_CPU_OMP_THREADS_BIND": "0|1",  # a core for each rank
            "SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1",  # SGLang's own: it ends an engine whose ranks differ
        },
    )


async def ranks(scene: Scene) -> Any:
    """What the plugin tells of the ranks."""
    return ((await scene.penstock())["scheduler"] or {}).get("lockstep", {})


async def together(scene: Scene) -> None:
    async def look() -> bool:
        told = await ranks(scene)
        return told.get("size") == 2 and told["passive_because"] == ""

    await eventually(look, what="ranks that decide alike", timeout_s=TIMEOUT_S)


async def test_a_retained_context_is_kept_on_every_rank_and_a_discarded_one_freed(
    ranked_engine: EngineServer, bus: Bus
) -> None:
    async with playing(ranked_engine, bus, FCFS) as scene:
        await together(scene)
        messages = await first_turn(scene, "kept", seed=900)
        other = await first_turn(scene, "freed", seed=901)
        await scene.obeyed(Retain(program_id="kept", ttl_ns=seconds(60)), Discard(program_id="freed"))
        assert (await next_turn(scene, "freed", other)).cached_tokens == 0
        await fill(scene, seed=910)
        assert (await next_turn(scene, "kept", messages)).cached_tokens >= PROMPT_TOKENS
        applied = await scene.obeyed(Retain(program_id="kept", ttl_ns=seconds(2.5)))
        await scene.until(PoolSampled, where=lambda event: event.at_ns > applied.at_ns and event.retained_blocks)
        ended = await scene.until(
            PoolSampled, where=lambda event: event.at_ns > applied.at_ns and not event.retained_blocks
        )
        assert ended.free_blocks + ended.evictable_blocks == ended.total_blocks, "it ended at its deadline"
        assert (await ranks(scene))["passive_because"] == ""


class Load:
    """Programs that take turns while commands about them come at any moment."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self._scene = scene
        self._random = random.Random(seed)
        self._said: dict[str, list[dict[str, str]]] = {}
        self._number = 0
        self.is_over = False

    async def turns(self, worker: int) -> None:
        """One turn after another, of one program or another of this worker's."""
        while not self.is_over:
            self._number += 1
            name = f"ranks-{worker}-{self._random.randrange(PROGRAMS // AT_ONCE)}"
            said = self._said.get(name, [])
            if sum(len(one["content"].split()) for one in said) > POOL_TOKENS // 4:
                said = []
            text = words(1000 + self._number, self._random.randrange(20, 400))
            messages = [*said, {"role": "user", "content": text}]
            reply = await self._scene.chat(name, messages, output_tokens=self._random.randrange(4, 40))
            assert reply.status == 200, reply.body
            self._said[name] = [*messages, {"role": "assistant", "content": reply.text}]

    async def commands(self) -> None:
        """Commands about programs, some of them in the middle of a turn."""
        while not self.is_over:
            names = sorted(self._said)
            if names:
                await self._scene.say(*(self._command(self._random.choice(names)) for _ in range(4)))
            await asyncio.sleep(0.05)

    def _command(self, name: str) -> ProgramCommand:
        made: list[ProgramCommand] = [
            Retain(program_id=name, ttl_ns=seconds(self._random.uniform(0.05, 3))),
            Retain(program_id=name, ttl_ns=seconds(20)),
            Release(program_id=name),
            Discard(program_id=name),
            Label(program_id=name, label=self._random.choice(("busy", "idle", "inactive", ""))),
        ]
        return self._random.choice(made)


@pytest.mark.timeout(1200 + STEPS)
async def test_ranks_decide_alike_under_load(ranked_engine: EngineServer, bus: Bus) -> None:
    """The engine's own order and eviction are the daemon's to say here, and pins come, yield, expire and go."""
    async with playing(ranked_engine, bus, STEERING) as scene:
        await together(scene)
        await policies_told(ranked_engine, STEERING)
        before = (await ranks(scene))["compared"]
        load = Load(scene, seed=20)
        work = [asyncio.ensure_future(load.turns(worker)) for worker in range(AT_ONCE)]
        work.append(asyncio.ensure_future(load.commands()))
        told = await ranks(scene)
        while told["compared"] - before < STEPS and not told["passive_because"]:
            assert not any(task.done() for task in work), [task.exception() for task in work if task.done()]
            await asyncio.sleep(0.5)
            told = await ranks(scene)
        load.is_over = True
        await asyncio.gather(*work)
        assert told["passive_because"] == ""
        metrics = await scene.metrics()
        applied, rejected = len(scene.heard(CommandApplied)), len(scene.heard(CommandRejected))
        log.info(
            "%d steps compared, %d commands applied, %d rejected, %d tokens evicted",
            told["compared"] - before,
            applied,
            rejected,
            metrics["evicted_tokens_total"],
        )
        assert applied > STEPS // 100
        assert metrics["evicted_tokens_total"] > POOL_TOKENS


async def test_where_one_rank_differs_all_give_up_in_the_same_step_and_the_engine_serves_on(
    ranked_engine: EngineServer, bus: Bus, disturb_file: Path
) -> None:
    async with playing(ranked_engine, bus, STEERING) as scene:
        await together(scene)
        await first_turn(scene, "pinned", seed=950)
        await first_turn(scene, "also-pinned", seed=951)
        for name in ("pinned", "also-pinned"):
            await scene.obeyed(Retain(program_id=name, ttl_ns=seconds(60)))
        disturb_file.touch()
        assert (await scene.chat("onlooker", words(952, 100), output_tokens=20)).status == 200

        async def told() -> bool:
            return bool((await ranks(scene))["passive_because"])

        await eventually(told, what="ranks that differ", timeout_s=TIMEOUT_S)
        assert (await ranks(scene))["passive_because"] == "rank 1 decided otherwise than rank 0"
        now_ns = time.monotonic_ns()
        last = await scene.until(PoolSampled, where=lambda event: event.at_ns > now_ns)
        assert (last.retained_blocks, last.total_blocks) == (0, POOL_TOKENS)
        (command_id,) = await scene.say(Retain(program_id="pinned", ttl_ns=seconds(60)))
        rejected = await scene.until(CommandRejected, command_id=command_id)
        assert "rank 1 decided otherwise than rank 0" in rejected.reason
        replies = await asyncio.gather(
            *(scene.chat(f"after-{number}", words(960 + number, 800), output_tokens=30) for number in range(8))
        )
        assert [(reply.status, reply.output_tokens) for reply in replies] == [(200, 30)] * 8
    log = ranked_engine.log
    (disturbed,) = re.findall(r"disturbed after word (\d+)", log)
    passive = re.findall(r"TP(\d)\].*nothing is steered from word (\d+) on", log)
    assert sorted(passive) == [("0", str(int(disturbed) + 1)), ("1", str(int(disturbed) + 1))], "in the next step"
    assert ranked_engine.is_healthy()
