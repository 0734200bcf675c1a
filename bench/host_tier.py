"""What host memory and a context that is fetched before it is needed are worth, on the real SGLang on this CPU.

    python bench/host_tier.py [--programs N] [--rounds N] [--tool-s S] [--environment FOLDER] [--json]

Programs take turns with tools between them that always last as long, while requests of nobody fill the pool. Three
systems do the same, one after another on this machine:

    stock        SGLang alone: what was evicted is computed again
    host         with HiCache; a daemon's policy (InferCept's) moves each context to the host while its tool runs
    prefetched   the same, and the policy has it loaded back before its program's likely return

Printed are the time to the first token of the returns, once the gaps were learned, and where their prompts were
found; in about five minutes. Compare the ratios: on a CPU a copy between host and device is one within the same
memory, so that a load costs next to nothing there, and what is computed again costs much.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed

import aiohttp
from ab.engine import ready_environment, versions
from ab.kinds import KINDS, SGLANG
from ab.machine import OthersWatch
from ab.model import write_model
from engine_server import EngineServer
from support.daemon_process import DaemonProcess
from tiny_model import VOCABULARY

NODE = "host-tier"
POOL_TOKENS = 8000
PROMPT_TOKENS = 2000
CHUNK_TOKENS = 1024
LEARNED = 2  # gaps of each program before its returns are measured
QUIET_S = 3.0  # before the returns nobody fills the pool; so long before them contexts are fetched
HICACHE = (
    "--enable-hierarchical-cache",
    *("--hicache-io-backend", "direct"),
    *("--hicache-mem-layout", "layer_first"),
    *("--hicache-ratio", "4"),
)
DAEMON = """
preset = "infercept"
[retention]
host_blocks_per_s = 1e8
prefetch_s = {prefetch_s}
[control.silence]
end_after_reply_s = 60  # this model calls no tools
"""
_WORDS = range(VOCABULARY // 2, VOCABULARY)  # one token each, and no word of the load generator's
SYSTEMS: dict[str, float | None] = {"stock": None, "host": 0.0, "prefetched": QUIET_S}


@dataclass
class Returns:
    """The measured returns of one system. Lists are in the order of the returns."""

    ttft_s: list[float] = field(default_factory=list)
    device_tokens: list[int] = field(default_factory=list)
    host_tokens: list[int] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)

    @property
    def median_ttft_s(self) -> float:
        return statistics.median(self.ttft_s)

    def share(self, tokens: list[int]) -> float:
        return sum(tokens) / sum(self.prompt_tokens)


def words(seed: int) -> str:
    """A prompt that shares no beginning with another's."""
    return " ".join(f"w{index}" for index in random.Random(seed).choices(_WORDS, k=PROMPT_TOKENS))


class Client:
    """Speaks to one engine."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url, self._http = url, http

    async def turn(self, program_id: str, messages: list[dict[str, str]]) -> tuple[float, Any, str]:
        """A streamed turn: seconds to its first token, where its prompt was found, and the reply."""
        body = {
            "model": "m",
            "messages": messages,
            "max_tokens": 8,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_cached_tokens_details": True,
        }
        headers = {"x-session-id": program_id} if program_id else {}
        began_s, first_s, text, told = time.perf_counter(), 0.0, "", {}
        async with self._http.post(f"{self._url}/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line.removeprefix(b"data: "))
                delta = (chunk["choices"] or [{"delta": {}}])[0]["delta"].get("content") or ""
                if delta and not first_s:
                    first_s = time.perf_counter() - began_s
                text += delta
                told |= {name: chunk[name] for name in ("usage", "sglext") if chunk.get(name)}
        return first_s, told, text


@contextlib.contextmanager
def running(folder: Path, environment: Path, prefetch_s: float | None) -> Iterator[str]:
    """The system's engine, ready, with its daemon; its address."""
    with contextlib.ExitStack() as stack:
        variables = {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
        if prefetch_s is not None:
            config = folder / "penstock.toml"
            config.write_text(DAEMON.format(prefetch_s=prefetch_s))
            daemon = DaemonProcess(folder / "state", "--config", str(config), node=NODE)
            daemon.start()
            stack.callback(daemon.clean_up)
            variables |= {"PENSTOCK_NODE": NODE, "PENSTOCK_STATE_DIR": str(folder / "state")}
        server = EngineServer(
            folder,
            environment=environment,
            model=write_model(folder / "model", "20m"),
            pool_tokens=POOL_TOKENS,
            plugins=() if prefetch_s is None else ("penstock",),
            variables=variables,
            arguments=(
                "--context-length",
                "16384",
                "--chunked-prefill-size",
                str(CHUNK_TOKENS),
                *(() if prefetch_s is None else HICACHE),
            ),
        )
        stack.callback(server.kill)
        server.start().wait_ready()
        yield server.url


async def governed(url: str, http: aiohttp.ClientSession) -> None:
    """Return once the daemon governs the gate."""
    while True:
        async with http.get(f"{url}/penstock/health") as response:
            if (await response.json())["mode"] == "governed":
                return
        await asyncio.sleep(0.1)


async def measure(url: str, args: argparse.Namespace, *, plugin: bool) -> Returns:
    """The programs' turns, round by round."""
    found = Returns()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as http:
        if plugin:
            await governed(url, http)
        client = Client(url, http)
        histories = {f"program-{n}": [{"role": "user", "content": words(n)}] for n in range(args.programs)}
        await fill(client, -2)  # the first is slower
        began_s = time.perf_counter()
        await fill(client, -1)
        tool_s = max(args.tool_s, 1.5 * (time.perf_counter() - began_s) + QUIET_S)
        for round_number in range(LEARNED + 1 + args.rounds):
            for name, messages in histories.items():
                ttft_s, told, text = await client.turn(name, messages)
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "w3 w4 w5"}]
                if round_number > LEARNED:
                    add(found, ttft_s, told)
            began_s = time.perf_counter()
            await fill(client, round_number)
            await asyncio.sleep(max(0.0, began_s + tool_s - time.perf_counter()))
    return found


def add(found: Returns, ttft_s: float, told: Any) -> None:
    details = (told.get("sglext") or {}).get("cached_tokens_details") or {}
    found.ttft_s.append(ttft_s)
    found.device_tokens.append(int(details.get("device", 0)))
    found.host_tokens.append(int(details.get("host", 0)))
    found.prompt_tokens.append(int(told["usage"]["prompt_tokens"]))


async def fill(client: Client, round_number: int) -> None:
    """Requests of nobody, as many as push everything else out of the pool."""
    for number in range(POOL_TOKENS // PROMPT_TOKENS + 2):
        text = words(10_000 + 100 * round_number + number)
        await client.turn("", [{"role": "user", "content": text}])


def run(environment: Path, args: argparse.Namespace) -> dict[str, Returns]:
    """All systems, one after another."""
    found = {}
    for name, prefetch_s in SYSTEMS.items():
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-host-tier-"))
            url = stack.enter_context(running(Path(folder), environment, prefetch_s))
            found[name] = asyncio.run(measure(url, args, plugin=prefetch_s is not None))
    return found


def show(found: dict[str, Returns]) -> None:
    base = found["stock"].median_ttft_s
    print(f"{'system':12} {'returns':>7} {'TTFT p50 s':>10} {'of stock':>8} {'device':>7} {'host':>6}")
    for name, returns in found.items():
        ttft_s, device, host = returns.median_ttft_s, returns.device_tokens, returns.host_tokens
        shares = f"{returns.share(device):7.0%} {returns.share(host):6.0%}"
        print(f"{name:12} {len(returns.ttft_s):7} {ttft_s:10.3f} {ttft_s / base:8.2f} {shares}")
    ratio = found["prefetched"].median_ttft_s / found["host"].median_ttft_s
    print(f"with prefetch over without: {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="of returns that are measured")
    parser.add_argument("--tool-s", type=float, default=12.0, help="at least, from turn to turn")
    parser.add_argument("--environment", type=Path, help="the engine's; default: as make engine-env makes it")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    environment = args.environment or ready_environment(KINDS[SGLANG].version)
    if environment is None:
        print("there is no engine to measure: make engine-env")
        return
    others = OthersWatch()
    found = run(environment, args)
    running_versions = versions(environment, KINDS[SGLANG])
    if args.json:
        told = {name: asdict(returns) for name, returns in found.items()}
        print(json.dumps({"versions": running_versions, "systems": told, "others": others.ratio()}))
        return
    show(found)
    print(f"SGLang {running_versions['sglang']}; others took {others.ratio():.0%} of {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
