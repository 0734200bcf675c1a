"""What the plugin costs a real SGLang on this machine's CPU.

    python bench/hook_cost_engine.py [--pairs N] [--control] [--environment FOLDER] [--json]

Budgets: 20 us an event and 1% of a step in the scheduler's thread; with no daemon 1% against no plugin at all.

*hooks*: the engine with the plugin, a daemon with preset `mars` and a nats-server; every hook is measured in place,
by the wall and in CPU time of the scheduler's thread, which other work on the machine does not lengthen.
*daemon off*: two engines, one with the plugin and one without, do the same work in turns (ABBA); each pair of
engines is a fresh one, since two processes differ by themselves. `--control` compares two engines without the
plugin: what it shows is noise. Without `--pairs` there are the hooks alone, in two minutes; ten pairs take half an
hour. hook_cost.py measures the same hooks over doubles, in seconds.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed

import aiohttp
import psutil
from ab import ROOT
from ab.engine import EngineShape, start_engine
from ab.machine import OthersWatch
from support.daemon_process import DaemonProcess
from tiny_model import VOCABULARY

from engine_hooks.sglang.guard import Guard

NODE = "hook-cost"
SHAPE = EngineShape(threads=1)  # the model's work on the scheduler's own thread, so that its CPU time says all
DAEMON = 'preset = "mars"\n[admission]\npolicy = "fixed"\nwindow = 0\n'
BATCH = 8
PROMPT_TOKENS = 256
OUTPUT_TOKENS = 96
WARM_UP_WAVES = 3
SETTLE_S = 2.5  # until the scheduler's process has told what it measured
TELLING = ("_add_request_to_queue", "get_new_batch_prefill", "process_batch_result", "release_kv_cache")
RESAMPLES = 4000
BUDGET_EVENT_US = 20.0
BUDGET_SHARE = 0.01
BUDGET_RATIO = 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What one piece of work took."""

    wall_s: float
    step_s: float  # median time between two tokens of one sequence
    thread_cpu_s: float  # of the scheduler's main thread
    scheduler_cpu_s: float  # of its whole process
    http_cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median with its 95% interval."""

    value: float
    low: float
    high: float

    def verdict(self, most: float) -> str:
        if self.high <= most:
            return "met"
        return "missed" if self.low > most else "not told from noise"


class Engine:
    """One running engine, its processes' CPU clocks, and the work that it is given."""

    def __init__(self, server: Any, http: aiohttp.ClientSession) -> None:
        self.url = server.url
        self._http = http
        main = psutil.Process(server._process.pid)
        (scheduler,) = [child for child in main.children() if "sglang::scheduler" in " ".join(child.cmdline())]
        self._pids = (scheduler.pid, main.pid)

    async def work(self, first_wave: int, waves: int = 1, output_tokens: int = OUTPUT_TOKENS) -> Segment:
        """The same waves are the same work. Each is ``BATCH`` programs' turns at once."""
        before = self._cpu_ns()
        began = time.perf_counter()
        gaps: list[float] = []
        for wave in range(first_wave, first_wave + waves):
            gaps += await self._wave(wave, output_tokens)
        wall_s = time.perf_counter() - began
        spent_s = [(after - at) / 1e9 for after, at in zip(self._cpu_ns(), before, strict=True)]
        step_s = statistics.median(gaps) if gaps else 0.0
        names = ("thread_cpu_s", "scheduler_cpu_s", "http_cpu_s")
        return Segment(wall_s=wall_s, step_s=step_s, **dict(zip(names, spent_s, strict=True)))

    def _cpu_ns(self) -> list[int]:
        scheduler, http = self._pids
        thread_ns = int(Path(f"/proc/{scheduler}/task/{scheduler}/schedstat").read_text().split()[0])
        return [thread_ns, *(time.clock_gettime_ns(_cpu_clock(pid)) for pid in (scheduler, http))]

    async def _wave(self, wave: int, output_tokens: int) -> list[float]:
        rng = random.Random(wave)
        prompts = [rng.choices(range(3, VOCABULARY), k=PROMPT_TOKENS) for _ in range(BATCH)]
        turns = [self._turn(f"p{number}", prompt, output_tokens) for number, prompt in enumerate(prompts)]
        return (await asyncio.gather(*turns))[0]

    async def _turn(self, program_id: str, prompt: list[int], output_tokens: int) -> list[float]:
        """Seconds between its tokens, where it is the one that streams."""
        sampling = {"max_new_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
        stream = program_id == "p0" and output_tokens == OUTPUT_TOKENS
        body = {"input_ids": prompt, "sampling_params": sampling, "stream": stream}
        headers = {"x-session-id": program_id}
        async with self._http.post(f"{self.url}/generate", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            if not stream:
                await response.read()
                return []
            seen = [time.perf_counter() async for line in response.content if line.startswith(b"data: {")]
        return [later - earlier for earlier, later in itertools.pairwise(seen)]

    async def health(self) -> Any:
        async with self._http.get(f"{self.url}/penstock/health") as response:
            return await response.json()


def _cpu_clock(pid: int) -> int:
    """Linux's id of the CPU clock of a process."""
    return (~pid << 3) | 2


def ready_environment() -> Path | None:
    """The engine tests' environment; None where it was not made."""
    script = ROOT / "scripts" / "engine_env.py"
    said = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    return Path(said.stdout.strip().splitlines()[-1]) if said.returncode == 0 else None


# How sure a ratio is


def estimate(pairs: Sequence[Sequence[float]]) -> Estimate:
    """The median of all ratios; its interval by resampling pairs of engines, and ratios within a pair."""
    rng = random.Random(0)
    medians = sorted(
        statistics.median([r for pair in rng.choices(pairs, k=len(pairs)) for r in rng.choices(pair, k=len(pair))])
        for _ in range(RESAMPLES)
    )
    low, high = medians[round(0.025 * RESAMPLES)], medians[round(0.975 * RESAMPLES) - 1]
    return Estimate(value=statistics.median([r for pair in pairs for r in pair]), low=low, high=high)


# Plugin without a daemon, against no plugin


@contextlib.contextmanager
def running(folder: Path, environment: Path, plugin: bool, **variables: str) -> Iterator[Any]:
    """A fresh engine."""
    own = {"PENSTOCK_NODE": NODE, "PENSTOCK_STATE_DIR": str(folder / "state"), **variables}
    plugins = ("penstock",) if plugin else ()
    server = start_engine(folder, environment, SHAPE, plugins=plugins, variables=own if plugin else {})
    try:
        yield server
    finally:
        server.kill()


async def one_pair(environment: Path, number: int, segments: int, control: bool) -> list[tuple[Segment, Segment]]:
    """(without, with the plugin) for each segment; the two engines live side by side, and one works at a time."""
    with tempfile.TemporaryDirectory(prefix="penstock-hook-cost-") as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        made = {}
        for name in ("without", "with") if number % 2 else ("with", "without"):
            plugin = name == "with" and not control
            made[name] = stack.enter_context(running(folder / name, environment, plugin))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as http:
            engines = {name: Engine(server, http) for name, server in made.items()}
            for engine in engines.values():
                await engine.work(first_wave=0, waves=WARM_UP_WAVES)
            told = []
            for segment in range(segments):
                order = ("without", "with") if segment % 2 else ("with", "without")
                took = {name: await engines[name].work(WARM_UP_WAVES + segment) for name in order}
                told.append((took["without"], took["with"]))
    return told


def compare(environment: Path, pairs: int, segments: int, control: bool) -> dict[str, Any]:
    """Ratios: with the plugin over without."""
    figures: dict[str, list[list[float]]] = {name: [] for name in Segment.__dataclass_fields__}
    steps: list[float] = []
    for number in range(pairs):
        told = asyncio.run(one_pair(environment, number, segments, control))
        steps += [without.step_s for without, _ in told]
        for name, ratios in figures.items():
            ratios.append([getattr(plugged, name) / getattr(without, name) for without, plugged in told])
        medians = ", ".join(f"{name} {statistics.median(ratios[-1]):.4f}" for name, ratios in figures.items())
        print(f"  pair {number + 1} of {pairs}: {medians}", file=sys.stderr, flush=True)
    ratios = {name: asdict(estimate(values)) for name, values in figures.items()}
    return {"step_ms": statistics.median(steps) * 1e3, "ratios": ratios}


# The hooks in place


async def measure_hooks(server: Any) -> dict[str, Any]:
    """Two phases: decoding, which tells what a step costs, and turns of two tokens, which tell of events."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as http:
        engine = Engine(server, http)
        while (await engine.health())["mode"] != "governed":  # noqa: ASYNC110  nothing to wait for over HTTP
            await asyncio.sleep(0.1)
        await engine.work(first_wave=0, waves=WARM_UP_WAVES)
        decoding = await _phase(engine, first_wave=100, waves=12, output_tokens=OUTPUT_TOKENS)
        turns = await _phase(engine, first_wave=200, waves=48, output_tokens=2)
    return {"wrapper_us": wrapper_cost_us(), "decoding": decoding, "turns_of_two_tokens": turns}


async def _phase(engine: Engine, first_wave: int, waves: int, output_tokens: int) -> dict[str, Any]:
    before = await _told(engine)
    segment = await engine.work(first_wave, waves, output_tokens)
    after = await _told(engine)
    by_hook = {}
    for name, spent in after["hook_times"].items():
        old = before["hook_times"].get(name, {"calls": 0, "total_ns": 0, "cpu_ns": 0})
        if calls := spent["calls"] - old["calls"]:
            wall_us, cpu_us = ((spent[of] - old[of]) / 1e3 for of in ("total_ns", "cpu_ns"))
            by_hook[name] = {"calls": calls, "wall_us": wall_us, "cpu_us": cpu_us}
    return {
        "segment": asdict(segment),
        "steps": by_hook["process_batch_result"]["calls"],
        "events": _events(after) - _events(before),
        "by_hook": by_hook,
        "failures": after["hook_failures"],
    }


async def _told(engine: Engine) -> Any:
    await asyncio.sleep(SETTLE_S)
    return (await engine.health())["scheduler"]


def _events(told: Any) -> int:
    return int(told["emitter"]["sent"] + told["emitter"]["queued"])


def wrapper_cost_us() -> float:
    """What one call of a hook costs around its part: SGLang's wrapper, ours and the guard."""
    hook = Guard().around("nothing", before=lambda: None)

    def engine() -> None:
        return None

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return hook(engine, *args, **kwargs)

    return max(0.0, _mean_us(wrapped) - _mean_us(engine))


def _mean_us(call: Callable[[], object], times: int = 200_000) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times * 1e6


def hooks(environment: Path) -> dict[str, Any]:
    """An engine that is governed by a daemon."""
    with tempfile.TemporaryDirectory(prefix="penstock-hook-cost-") as scratch:
        folder = Path(scratch)
        (folder / "penstock.toml").write_text(DAEMON)
        daemon = DaemonProcess(folder / "state", "--config", str(folder / "penstock.toml"), node=NODE)
        daemon.start()
        try:
            with running(folder, environment, True, PENSTOCK_PLUGIN_TIMING="1") as server:
                return asyncio.run(measure_hooks(server))
        finally:
            daemon.clean_up()


# What is said


def show_hooks(found: dict[str, Any]) -> None:
    wrapper_us = found["wrapper_us"]
    for phase in ("decoding", "turns_of_two_tokens"):
        told = found[phase]
        steps, hooks_found = told["steps"], told["by_hook"]
        print(f"{phase}: {steps} steps, {told['events']} events; us of CPU (by the wall)")
        for name, hook in sorted(hooks_found.items(), key=lambda item: -item[1]["cpu_us"]):
            calls, cpu_us, wall_us = hook["calls"], hook["cpu_us"], hook["wall_us"]
            a_call = f"{cpu_us / calls:.1f} ({wall_us / calls:.1f})"
            a_step = f"{cpu_us / steps:.1f} ({wall_us / steps:.1f})"
            print(f"  {name:26} {calls:6} calls, {a_call:>18} a call, {a_step:>18} a step")
        around_us = wrapper_us * sum(hook["calls"] for hook in hooks_found.values()) / steps
        cpu_us = sum(hook["cpu_us"] for hook in hooks_found.values()) / steps + around_us
        wall_us = sum(hook["wall_us"] for hook in hooks_found.values()) / steps + around_us
        thread_us = told["segment"]["thread_cpu_s"] / steps * 1e6
        step_us = told["segment"]["wall_s"] / steps * 1e6
        print(f"  wrappers around them {around_us:.1f} us a step; all {cpu_us:.1f} ({wall_us:.1f}) us a step")
        share = f"{cpu_us / thread_us:.3%} of {thread_us / 1e3:.2f} ms of CPU, {wall_us / step_us:.3%} of"
        print(f"  share of a step: {share} {step_us / 1e3:.2f} ms by the wall (budget {BUDGET_SHARE:.0%})")
        telling_us = sum(hooks_found[name]["cpu_us"] for name in TELLING) / told["events"]
        if phase == "turns_of_two_tokens":
            print(f"  an event: {telling_us:.1f} us in the hooks that tell (budget {BUDGET_EVENT_US:g})")
        print(f"  failures: {told['failures'] or 'none'}")


def show(result: dict[str, Any]) -> None:
    if found := result.get("hooks"):
        show_hooks(found)
    if found := result.get("daemon_off"):
        what = "two engines without the plugin" if result["control"] else "plugin without a daemon over no plugin"
        print(f"{what}; a step takes {found['step_ms']:.2f} ms")
        for name, ratio in found["ratios"].items():
            one = Estimate(**ratio)
            print(f"{name:18} {one.value:.4f} [{one.low:.4f}, {one.high:.4f}]  {one.verdict(BUDGET_RATIO)}")
    print(f"others took {result['others_ratio']:.0%} of {os.cpu_count()} CPUs meanwhile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pairs", type=int, default=0, help="of fresh engines, to compare with and without the plugin"
    )
    parser.add_argument("--segments", type=int, default=16, help="pieces of work for each engine of a pair")
    parser.add_argument(
        "--control", action="store_true", help="compare two engines without the plugin, and no hooks"
    )
    parser.add_argument("--environment", type=Path, help="the engine's; default: as make engine-env makes it")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    environment = args.environment or ready_environment()
    if environment is None:
        print("there is no engine to measure: make engine-env")
        return
    others = OthersWatch()
    result: dict[str, Any] = {"control": args.control}
    if not args.control:
        result["hooks"] = hooks(environment)
    if args.pairs:
        result["daemon_off"] = compare(environment, args.pairs, args.segments, args.control)
    result["others_ratio"] = others.ratio()
    print(json.dumps(result)) if args.json else show(result)


if __name__ == "__main__":
    main()
