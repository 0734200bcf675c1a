"""How many turns move between the data-parallel ranks of a real SGLang, without and with Penstock.

    python bench/rank_affinity.py [--programs 12] [--turns 8] [--seed 1] [--version 0.5.21] [--json]

Programs grow turn by turn beside each other, with contexts that fit both ranks' pools together. The engine's own
words count: each reply says which rank ran it and how much of its prompt was cached. *stock* has no plugin;
*penstock* has it, and a daemon with the default preset. Shares do not depend on how busy the machine is; times are
not told.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed

import ab  # noqa: F401  makes the engine tests' helpers importable
import aiohttp
from ab.engine import find_environment, versions
from ab.kinds import KINDS, SGLANG
from engine_server import EngineServer
from support.daemon_process import DaemonProcess, eventually
from tiny_model import VOCABULARY, write_tiny_model

NODE, RANKS = "rank-affinity", 2
POOL_TOKENS = 16_000  # of each rank
FIRST_TOKENS, MORE_TOKENS, OUTPUT_TOKENS = 400, 150, 16
GAP_S = (0.1, 0.5)  # between two turns
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one system's turns met. ``moved``: those that ran on another rank than their program's last."""

    turns: int
    followed: int
    moved: int
    prompt_tokens: int
    cached_tokens: int
    by_rank: dict[int, int]


async def program(http: aiohttp.ClientSession, url: str, name: str, turns: int, seed: int) -> list[dict[str, Any]]:
    """The engine's words about each of its turns."""
    rng = random.Random(f"{seed}/{name}")
    ids = rng.choices(range(3, VOCABULARY), k=FIRST_TOKENS)
    told = []
    for _ in range(turns):
        sampling = {"max_new_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": ids, "sampling_params": sampling}
        async with http.post(f"{url}/generate", json=body, headers={"x-session-id": name}) as response:
            response.raise_for_status()
            reply = await response.json()
        told.append(reply["meta_info"])
        ids = [*ids, *reply["output_ids"], *rng.choices(range(3, VOCABULARY), k=MORE_TOKENS)]
        await asyncio.sleep(rng.uniform(*GAP_S))
    return told


async def load(url: str, governed: bool, programs: int, turns: int, seed: int) -> Found:
    """All programs beside each other."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as http:
        if governed:

            async def heard() -> bool:
                async with http.get(f"{url}/penstock/health") as response:
                    health = await response.json()
                ranks = health["schedulers"].values()
                return health["mode"] == "governed" and all(told["emitter"]["sent"] for told in ranks)

            await eventually(heard, what="gate that is governed", timeout_s=TIMEOUT_S)
        names = [f"program-{number}" for number in range(programs)]
        each = await asyncio.gather(*(program(http, url, name, turns, seed) for name in names))
    pairs = [pair for told in each for pair in pairwise(told)]
    replies = [reply for told in each for reply in told]
    return Found(
        turns=len(replies),
        followed=len(pairs),
        moved=sum(one["dp_rank"] != other["dp_rank"] for one, other in pairs),
        prompt_tokens=sum(reply["prompt_tokens"] for reply in replies),
        cached_tokens=sum(reply["cached_tokens"] for reply in replies),
        by_rank={rank: sum(reply["dp_rank"] == rank for reply in replies) for rank in range(RANKS)},
    )


def run(folder: Path, environment: Path, plugin: bool, programs: int, turns: int, seed: int) -> Found:
    """One system, from the start of its engine to its end."""
    state = folder / "state"
    own = {"PENSTOCK_NODE": NODE, "PENSTOCK_STATE_DIR": str(state)} if plugin else {}
    server = EngineServer(
        folder,
        environment=environment,
        model=write_tiny_model(folder / "model"),
        pool_tokens=POOL_TOKENS,
        plugins=("penstock",) if plugin else (),
        variables={"SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, range(RANKS))), **own},
        arguments=("--dp-size", str(RANKS)),
    )
    daemon = DaemonProcess(state, node=NODE) if plugin else None
    try:
        if daemon is not None:
            daemon.start()
        server.start().wait_ready()
        return asyncio.run(load(server.url, plugin, programs, turns, seed))
    finally:
        server.kill()
        if daemon is not None:
            daemon.clean_up()


def main() -> int:
    """Both systems, one after the other; prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=12)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--version", default="")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    environment = find_environment(asked.version)
    found = {}
    for name in ("stock", "penstock"):
        with tempfile.TemporaryDirectory(prefix="penstock-ranks-") as scratch:
            plugin = name == "penstock"
            found[name] = run(Path(scratch), environment, plugin, asked.programs, asked.turns, asked.seed)
    if asked.json:
        print(
            json.dumps(
                {
                    "versions": versions(environment, KINDS[SGLANG]),
                    **{name: asdict(each) for name, each in found.items()},
                }
            )
        )
        return 0
    sglang = versions(environment, KINDS[SGLANG])["sglang"]
    print(f"{asked.programs} programs of {asked.turns} turns, seed {asked.seed}, SGLang {sglang}")
    for name, each in found.items():
        moved, hits = each.moved / each.followed, each.cached_tokens / each.prompt_tokens
        print(
            f"{name:9} moved {moved:6.1%} of {each.followed}   hit rate {hits:.3f}   turns by rank {each.by_rank}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
