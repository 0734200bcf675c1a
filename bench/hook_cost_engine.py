"""What the plugin's hooks cost a real SGLang or vLLM on this machine's CPU (budget: 20 us an event, 1% of a step).

    python bench/hook_cost_engine.py [--engine vllm] [--json]

The engine runs with the plugin, a daemon with preset `mars` and a nats-server; every hook is measured in place, by
the wall and in CPU time of the scheduler's thread, which other work on the machine does not lengthen. The yardstick
is that thread's CPU time in the same steps. It takes two minutes.
"""

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from ab.engine import ready_environment, start_engine
from ab.kinds import KINDS, SGLANG, VLLM, EngineShape
from ab.machine import OthersWatch
from engine_server import EngineServer
from support.daemon_process import DaemonProcess
from tiny_model import VOCABULARY

from engine_hooks.engine.settings import Settings
from engine_hooks.guard import Guard
from engine_hooks.vllm.scheduler_side import SchedulerSide

NODE = "hook-cost"
SHAPE = EngineShape(threads=1)  # the model's work on the scheduler's own thread, so that its CPU time says all
DAEMON = 'preset = "mars"\n[admission]\npolicy = "fixed"\nwindow = 0\n'
BATCH, PROMPT_TOKENS, OUTPUT_TOKENS = 8, 256, 96
WARM_UP_WAVES = 3
SETTLE_S = 2.5  # until the scheduler's process has published what it measured
BUDGET_EVENT_US, BUDGET_SHARE = 20.0, 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooked:
    """One engine.

    ``process``: what the command line of its scheduler's process has in it. ``step``: a hook that runs once in each
    step. ``events``: the hooks that make events. ``path``: where tokens are asked for behind a prompt of token ids.
    """

    process: str
    step: str
    events: Sequence[str]
    path: str


HOOKED: Mapping[str, Hooked] = {
    SGLANG: Hooked(
        process="sglang::scheduler",
        step="process_batch_result",
        events=("_add_request_to_queue", "get_new_batch_prefill", "process_batch_result", "release_kv_cache"),
        path="/generate",
    ),
    VLLM: Hooked(
        process="EngineCore",
        step="schedule",
        events=("add_request", "schedule", "without_token", "update_from_output", "before_free", "_free_request"),
        path="/v1/completions",
    ),
}


def body_of(engine: str, prompt: Sequence[int], output_tokens: int) -> dict[str, Any]:
    """Build a request for so many tokens."""
    if engine == SGLANG:
        sampling = {"max_new_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
        return {"input_ids": prompt, "sampling_params": sampling}
    return {"model": "tiny", "prompt": prompt, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}


def empty_hook(engine: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Make a function that does nothing, and the same with a hook around it."""

    def nothing(*args: object) -> None:
        return None

    if engine == SGLANG:  # SGLang's wrapper, ours and the guard
        hook = Guard().around("nothing", before=lambda: None)
        return nothing, lambda: hook(nothing)
    side = SchedulerSide(Settings())
    side.attached = object()  # type: ignore[assignment]  # a part runs only where something is attached

    class Plain:
        def step(self) -> None:
            return None

    class Observed(Plain):  # an override that calls our part and then the engine's own method
        def step(self, *args: Any, **kwargs: Any) -> None:
            side.part("nothing", nothing)
            return super().step(*args, **kwargs)

    return Plain().step, Observed().step


def mean_us(call: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times * 1e6


def wrapper_cost_us(engine: str) -> float:
    """Time what one call of a hook costs around its part."""
    plain, wrapped = empty_hook(engine)
    return max(0.0, mean_us(wrapped, 200_000) - mean_us(plain, 200_000))


class Engine:
    """One running engine, its scheduler's CPU clock, and the work that it is given."""

    def __init__(self, engine: str, server: EngineServer, http: aiohttp.ClientSession) -> None:
        self._engine, self._url, self._http = engine, server.url, http
        children = psutil.Process(server.pid).children()
        (self._scheduler,) = [c.pid for c in children if HOOKED[engine].process in " ".join(c.cmdline())]

    async def work(self, first_wave: int, waves: int, output_tokens: int = OUTPUT_TOKENS) -> None:
        """Ask for waves of ``BATCH`` programs' turns at once; the same waves are the same work."""
        for wave in range(first_wave, first_wave + waves):
            rng = random.Random(wave)
            prompts = [rng.choices(range(3, VOCABULARY), k=PROMPT_TOKENS) for _ in range(BATCH)]
            await asyncio.gather(*(self._turn(f"p{n}", prompt, output_tokens) for n, prompt in enumerate(prompts)))

    async def _turn(self, program_id: str, prompt: list[int], output_tokens: int) -> None:
        url, body = self._url + HOOKED[self._engine].path, body_of(self._engine, prompt, output_tokens)
        async with self._http.post(url, json=body, headers={"x-session-id": program_id}) as response:
            assert response.status == 200, await response.text()
            await response.read()

    def thread_cpu_us(self) -> float:
        """Read the clock of the scheduler's main thread."""
        stat = Path(f"/proc/{self._scheduler}/task/{self._scheduler}/schedstat")
        return int(stat.read_text().split()[0]) / 1e3

    async def health(self) -> Any:
        async with self._http.get(f"{self._url}/penstock/health") as response:
            return await response.json()

    async def measured(self) -> Any:
        await asyncio.sleep(SETTLE_S)
        return (await self.health())["scheduler"]


async def phase(engine: Engine, hooked: Hooked, first_wave: int, waves: int, output_tokens: int) -> dict[str, Any]:
    """Measure the hooks while so much work is done."""
    before, began_us, began_s = await engine.measured(), engine.thread_cpu_us(), time.perf_counter()
    await engine.work(first_wave, waves, output_tokens)
    wall_us, thread_us = (time.perf_counter() - began_s) * 1e6, engine.thread_cpu_us() - began_us
    after = await engine.measured()
    by_hook = {}
    for name, spent in after["hook_times"].items():
        old = before["hook_times"].get(name, {"calls": 0, "total_ns": 0, "cpu_ns": 0})
        if calls := spent["calls"] - old["calls"]:
            us = {key: (spent[of] - old[of]) / 1e3 for key, of in (("wall_us", "total_ns"), ("cpu_us", "cpu_ns"))}
            by_hook[name] = {"calls": calls, **us}
    return {
        "wall_us": wall_us,
        "thread_cpu_us": thread_us,
        "steps": by_hook[hooked.step]["calls"],
        "events": sum(
            sign * (at["emitter"]["sent"] + at["emitter"]["queued"]) for sign, at in ((1, after), (-1, before))
        ),
        "by_hook": by_hook,
        "failures": after["hook_failures"],
    }


async def measure(name: str, server: EngineServer) -> dict[str, Any]:
    """Measure two phases: decoding, which shows what a step costs, and turns of two tokens, which show events."""
    hooked = HOOKED[name]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as http:
        engine = Engine(name, server, http)
        while (await engine.health())["mode"] != "governed":  # noqa: ASYNC110  nothing to wait for over HTTP
            await asyncio.sleep(0.1)
        await engine.work(0, WARM_UP_WAVES)
        decoding = await phase(engine, hooked, 100, 12, OUTPUT_TOKENS)
        turns = await phase(engine, hooked, 200, 48, 2)
    return {"wrapper_us": wrapper_cost_us(name), "decoding": decoding, "turns_of_two_tokens": turns}


def run(name: str, environment: Path) -> dict[str, Any]:
    """Start all of it, and measure."""
    with tempfile.TemporaryDirectory(prefix="penstock-hook-cost-") as scratch:
        folder = Path(scratch)
        (folder / "penstock.toml").write_text(DAEMON)
        daemon = DaemonProcess(folder / "state", "--config", str(folder / "penstock.toml"), node=NODE)
        daemon.start()
        own = {"PENSTOCK_NODE": NODE, "PENSTOCK_STATE_DIR": str(folder / "state"), "PENSTOCK_PLUGIN_TIMING": "1"}
        try:
            shape = replace(SHAPE, kind=name)
            server = start_engine(folder, environment, shape, plugins=("penstock",), variables=own)
            try:
                return asyncio.run(measure(name, server))
            finally:
                server.kill()
        finally:
            daemon.clean_up()


def show(name: str, result: dict[str, Any]) -> None:
    for title in ("decoding", "turns_of_two_tokens"):
        one = result[title]
        steps, hooks = one["steps"], one["by_hook"]
        print(f"{title}: {steps} steps, {one['events']} events; us of CPU (by the wall)")
        for hook, spent in sorted(hooks.items(), key=lambda item: -item[1]["cpu_us"]):
            calls, cpu_us, wall_us = spent["calls"], spent["cpu_us"], spent["wall_us"]
            a_call, a_step = (f"{cpu_us / n:.1f} ({wall_us / n:.1f})" for n in (calls, steps))
            print(f"  {hook:26} {calls:6} calls, {a_call:>18} a call, {a_step:>18} a step")
        around_us = result["wrapper_us"] * sum(spent["calls"] for spent in hooks.values())
        shares = (
            (sum(spent[key] for spent in hooks.values()) + around_us) / one[whole]
            for key, whole in (("cpu_us", "thread_cpu_us"), ("wall_us", "wall_us"))
        )
        cpu, wall = (f"{share:.3%}" for share in shares)
        print(f"  share of a step: {cpu} of its CPU time, {wall} by the wall (budget {BUDGET_SHARE:.0%})")
        print(f"  failures: {one['failures'] or 'none'}")
    events_us = sum(spent["cpu_us"] for hook, spent in hooks.items() if hook in HOOKED[name].events)
    print(
        f"an event: {events_us / one['events']:.1f} us in the hooks that make events (budget {BUDGET_EVENT_US:g})"
    )
    print(f"other work took {result['others_ratio']:.0%} of {os.cpu_count()} CPUs meanwhile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=sorted(HOOKED), default=SGLANG, help="default: %(default)s")
    parser.add_argument("--environment", type=Path, help="the engine's; default: as make engine-env makes it")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    environment = args.environment or ready_environment(KINDS[args.engine].version)
    if environment is None:
        print(f"there is no engine to measure: make engine-env ENGINE={args.engine}")
        return
    others = OthersWatch()
    result = run(args.engine, environment)
    result["others_ratio"] = others.ratio()
    print(json.dumps(result)) if args.json else show(args.engine, result)


if __name__ == "__main__":
    main()
