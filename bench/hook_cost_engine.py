"""What the plugin costs a real SGLang or vLLM on this machine's CPU.

    python bench/hook_cost_engine.py [--engine vllm] [--switched N] [--pairs N] [--control] [--json]

Budgets: 20 us an event and 1% of a step in the scheduler's thread; with no daemon 1% against no plugin at all.

*hooks*: the engine with the plugin, a daemon with preset `mars` and a nats-server; every hook is measured in place,
by the wall and in CPU time of the scheduler's thread, which other work on the machine does not lengthen.

*switched*: N fresh engines with the plugin and without a daemon; in each the hooks are switched on and off by
chance, step by step. Steps of one process are compared with each other, so that a fraction of 1% can be told on a
busy machine. In both are the wrappers around the engine's functions, of which *hooks* tells, and the plugin's
threads, of which *pairs* does.

*pairs*: N times two fresh engines, one with the plugin and one without any, do the same work in turns. Two
processes differ by some percent by themselves, so that it takes very many pairs to tell 1%; `--control` shows that,
with two engines without the plugin.

Without options there are the hooks alone, in two minutes. hook_cost.py measures them over doubles, in seconds.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed

import aiohttp
from ab import ROOT
from ab.engine import ready_environment, start_engine
from ab.kinds import SGLANG, EngineShape
from ab.machine import OthersWatch
from engine_server import EngineServer
from hook_parts.engines import HOOKED, Hooked
from hook_parts.ratios import Estimate, of_pairs, of_steps
from hook_parts.work import BATCH, OUTPUT_TOKENS, Compared, Engine, Segment
from support.daemon_process import DaemonProcess

NODE = "hook-cost"
SWITCH = ROOT / "bench" / "hook_parts" / "switch"
SHAPE = EngineShape(threads=1)  # the model's work on the scheduler's own thread, so that its CPU time says all
DAEMON = 'preset = "mars"\n[admission]\npolicy = "fixed"\nwindow = 0\n'
WARM_UP_WAVES = 3
SETTLE_S = 2.5  # until the scheduler's process has told what it measured
BUDGET_EVENT_US = 20.0
BUDGET_SHARE = 0.01
BUDGET_RATIO = 1.01


# Plugin without a daemon, against no plugin


@contextlib.contextmanager
def running(
    folder: Path, environment: Path, hooked: Hooked, plugin: bool, **variables: str
) -> Iterator[EngineServer]:
    """A fresh engine."""
    own = {"PENSTOCK_NODE": NODE, "PENSTOCK_STATE_DIR": str(folder / "state"), **variables}
    plugins = ("penstock",) if plugin else ()
    shape = replace(SHAPE, kind=hooked.kind.name)
    server = start_engine(folder, environment, shape, plugins=plugins, variables=own if plugin else {})
    try:
        yield server
    except aiohttp.ClientError:
        print("\n".join(server.log.splitlines()[-40:]), file=sys.stderr)  # it is gone with its folder
        raise
    finally:
        server.kill()


async def one_switched(environment: Path, hooked: Hooked, waves: int) -> list[tuple[bool, int, int]]:
    """An engine against itself: (hooks on, ns by the wall, ns of CPU) of each step that decoded a whole batch."""
    with tempfile.TemporaryDirectory(prefix="penstock-hook-cost-") as scratch, contextlib.ExitStack() as stack:
        file = Path(scratch) / "steps.json"
        variables = {
            "PYTHONPATH": os.pathsep.join(map(str, (SWITCH, *hooked.kind.path))),
            "HOOK_SWITCH_BATCH": str(BATCH),
            "HOOK_SWITCH_FILE": str(file),
        }
        server = stack.enter_context(running(Path(scratch), environment, hooked, True, **variables))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as http:
            engine = Engine(server, http, hooked)
            for wave in range(waves):
                await engine.work(wave)
            engine.ask_for_steps()
            while not file.exists():
                await engine.work(waves)  # a scheduler that waits for work takes no signal
                waves += 1
        return [tuple(step) for step in json.loads(file.read_text())]


def switched(environment: Path, hooked: Hooked, count: int, waves: int) -> dict[str, Any]:
    """Hooks on over hooks off, by the wall and in CPU time."""
    engines = []
    for number in range(count):
        engines.append(asyncio.run(one_switched(environment, hooked, waves)))
        print(f"  {number + 1} of {count}: {len(engines[-1])} steps", file=sys.stderr, flush=True)
    ratios = {}
    for index, name in ((1, "step_wall"), (2, "step_thread_cpu")):
        sides = [
            tuple([step[index] for step in steps if step[0] is on] for on in (True, False)) for steps in engines
        ]
        ratios[name] = asdict(of_steps(sides))
    off_ms = [step[1] / 1e6 for steps in engines for step in steps if not step[0]]
    return {"step_ms": statistics.median(off_ms), "steps": sum(map(len, engines)), "ratios": ratios}


async def one_pair(environment: Path, hooked: Hooked, number: int, segments: int, control: bool) -> list[Compared]:
    """Two engines live side by side, and one works at a time."""
    with tempfile.TemporaryDirectory(prefix="penstock-hook-cost-") as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        made = {}
        for name in ("without", "with") if number % 2 else ("with", "without"):
            plugin = name == "with" and not control
            made[name] = stack.enter_context(running(folder / name, environment, hooked, plugin))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as http:
            engines = {name: Engine(server, http, hooked) for name, server in made.items()}
            for engine in engines.values():
                await engine.work(first_wave=0, waves=WARM_UP_WAVES)
            told = []
            for segment in range(segments):
                order = ("without", "with") if segment % 2 else ("with", "without")
                took = {name: await engines[name].work(WARM_UP_WAVES + segment) for name in order}
                told.append(Compared(without=took["without"], plugged=took["with"]))
    return told


def compare(environment: Path, hooked: Hooked, count: int, segments: int, control: bool) -> dict[str, Any]:
    """Ratios: with over without."""
    figures: dict[str, list[list[float]]] = {name: [] for name in Segment.__dataclass_fields__}
    all_told: list[Compared] = []
    for number in range(count):
        told = asyncio.run(one_pair(environment, hooked, number, segments, control))
        all_told += told
        for name, ratios in figures.items():
            ratios.append([getattr(one.plugged, name) / getattr(one.without, name) for one in told])
        medians = ", ".join(f"{name} {statistics.median(ratios[-1]):.4f}" for name, ratios in figures.items())
        print(f"  {number + 1} of {count}: {medians}", file=sys.stderr, flush=True)
    return {
        "step_ms": statistics.median([one.without.step_s for one in all_told]) * 1e3,
        "ratios": {name: asdict(of_pairs(values)) for name, values in figures.items()},
        "other_threads_share": {
            side: statistics.median([_other_threads_share(getattr(one, side)) for one in all_told])
            for side in ("without", "plugged")
        },
    }


def _other_threads_share(segment: Segment) -> float:
    """CPU time of the scheduler's process beside its main thread, for each second of that."""
    return (segment.scheduler_cpu_s - segment.thread_cpu_s) / segment.thread_cpu_s


# The hooks in place


async def measure_hooks(server: EngineServer, hooked: Hooked) -> dict[str, Any]:
    """Two phases: decoding, which tells what a step costs, and turns of two tokens, which tell of events."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as http:
        engine = Engine(server, http, hooked)
        while (await engine.health())["mode"] != "governed":  # noqa: ASYNC110  nothing to wait for over HTTP
            await asyncio.sleep(0.1)
        await engine.work(first_wave=0, waves=WARM_UP_WAVES)
        decoding = await _phase(engine, hooked, first_wave=100, waves=12, output_tokens=OUTPUT_TOKENS)
        turns = await _phase(engine, hooked, first_wave=200, waves=48, output_tokens=2)
    return {"wrapper_us": wrapper_cost_us(hooked), "decoding": decoding, "turns_of_two_tokens": turns}


async def _phase(engine: Engine, hooked: Hooked, first_wave: int, waves: int, output_tokens: int) -> dict[str, Any]:
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
        "steps": by_hook[hooked.step]["calls"],
        "events": _events(after) - _events(before),
        "by_hook": by_hook,
        "failures": after["hook_failures"],
    }


async def _told(engine: Engine) -> Any:
    await asyncio.sleep(SETTLE_S)
    return (await engine.health())["scheduler"]


def _events(told: Any) -> int:
    return int(told["emitter"]["sent"] + told["emitter"]["queued"])


def wrapper_cost_us(hooked: Hooked) -> float:
    """What one call of a hook costs around its part."""
    engine, wrapped = hooked.empty()
    return max(0.0, _mean_us(wrapped) - _mean_us(engine))


def _mean_us(call: Callable[[], object], times: int = 200_000) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times * 1e6


def hooks(environment: Path, hooked: Hooked) -> dict[str, Any]:
    """An engine that is governed by a daemon."""
    with tempfile.TemporaryDirectory(prefix="penstock-hook-cost-") as scratch:
        folder = Path(scratch)
        (folder / "penstock.toml").write_text(DAEMON)
        daemon = DaemonProcess(folder / "state", "--config", str(folder / "penstock.toml"), node=NODE)
        daemon.start()
        try:
            with running(folder, environment, hooked, True, PENSTOCK_PLUGIN_TIMING="1") as server:
                return asyncio.run(measure_hooks(server, hooked))
        finally:
            daemon.clean_up()


# What is said


def show_hooks(found: dict[str, Any], hooked: Hooked) -> None:
    wrapper_us = found["wrapper_us"]
    decoding = found["decoding"]
    decode_us = decoding["segment"]["thread_cpu_s"] / decoding["steps"] * 1e6
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
        if phase == "turns_of_two_tokens":
            telling = [hooks_found[name]["cpu_us"] for name in hooked.telling if name in hooks_found]
            event_us = sum(telling) / told["events"]
            print(f"  an event: {event_us:.1f} us in the hooks that tell (budget {BUDGET_EVENT_US:g}):")
            print(
                f"    {event_us / wrapper_us:.0f} empty hooks, {event_us / decode_us:.3%} of a decoding step's CPU"
            )
        print(f"  failures: {told['failures'] or 'none'}")


def show_ratios(title: str, found: dict[str, Any]) -> None:
    print(f"{title}; a step takes {found['step_ms']:.2f} ms")
    for name, ratio in found["ratios"].items():
        one = Estimate(**ratio)
        print(f"  {name:16} {one.value:.4f} [{one.low:.4f}, {one.high:.4f}]  {one.verdict(BUDGET_RATIO)}")
    if others := found.get("other_threads_share"):
        print(f"  the scheduler's other threads: {others['without']:.2%} without, {others['plugged']:.2%} with")


def show(result: dict[str, Any]) -> None:
    if found := result.get("hooks"):
        show_hooks(found, HOOKED[result["engine"]])
    if found := result.get("switched"):
        show_ratios(f"no daemon, hooks on over hooks off, {found['steps']} steps", found)
    if found := result.get("pairs"):
        what = "two engines without the plugin" if result["control"] else "no daemon, plugin over no plugin"
        show_ratios(what, found)
    print(f"others took {result['others_ratio']:.0%} of {os.cpu_count()} CPUs meanwhile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=sorted(HOOKED), default=SGLANG, help="default: %(default)s")
    parser.add_argument("--switched", type=int, default=0, help="engines, their hooks switched on and off")
    parser.add_argument("--pairs", type=int, default=0, help="of engines, one with and one without the plugin")
    parser.add_argument("--waves", type=int, default=40, help="of work for each of the switched engines")
    parser.add_argument("--segments", type=int, default=16, help="of work for each engine of a pair")
    parser.add_argument("--control", action="store_true", help="no plugin in either engine of a pair")
    parser.add_argument("--environment", type=Path, help="the engine's; default: as make engine-env makes it")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    hooked = HOOKED[args.engine]
    environment = args.environment or ready_environment(hooked.kind.version)
    if environment is None:
        print(f"there is no engine to measure: make engine-env{'' if args.engine == SGLANG else f'-{args.engine}'}")
        return
    others = OthersWatch()
    result: dict[str, Any] = {"engine": args.engine, "control": args.control}
    if not args.control:
        result["hooks"] = hooks(environment, hooked)
    if args.switched:
        result["switched"] = switched(environment, hooked, args.switched, args.waves)
    if args.pairs:
        result["pairs"] = compare(environment, hooked, args.pairs, args.segments, args.control)
    result["others_ratio"] = others.ratio()
    print(json.dumps(result)) if args.json else show(result)


if __name__ == "__main__":
    main()
