"""One run: an engine double with a scripted model, Penstock or not, and agents that come, work and end."""

import json
import os
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import psutil
from ab.machine import busy_s, cpus, model_name, tree_cpu_s
from support.whole_loop import Loop

from controlplane.core.policies.presets import STOCK
from controlplane.lab.workload.provenance import digest, revision
from controlplane.transport.endpoint import resolve_url
from controlplane.transport.roles import BusRole
from real.crew import Crew
from real.results import COMPLETED, FAILED, TIMED_OUT, Ended, Row
from real.tasks import Load, script, tasks

BARE, WINDOW = "stock", "window"
_SHOW_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All that makes runs comparable."""

    load: Load = field(default_factory=Load)
    profile: str = "h200-llama31-8b"
    pool_tokens: int = 80_000
    tokens_per_word: int = 6
    window: int = 4  # how many contexts fit into the pool at their end, what they share counted once
    limit_s: float = 100.0

    @property
    def digest(self) -> str:
        return digest(json.dumps(asdict(self), sort_keys=True))

    @property
    def longest_s(self) -> float:
        """About what a run takes where somebody times out."""
        return (self.load.openhands + self.load.mini) / self.load.rate + self.limit_s


class _Show:
    """Tells how a run goes, now and then, and remembers the most memory in use."""

    def __init__(self, title: str, agents: int) -> None:
        self._title, self._agents = title, agents
        self._next_s = 0.0
        self._before = psutil.virtual_memory().used
        self.peak_gb = 0.0

    def __call__(self, now_s: float, working: int, ended: Sequence[Ended]) -> None:
        if now_s < self._next_s:
            return
        self._next_s = now_s + _SHOW_EVERY_S
        self.peak_gb = max(self.peak_gb, (psutil.virtual_memory().used - self._before) / 1e9)
        counts = (sum(each.outcome == outcome for each in ended) for outcome in (COMPLETED, TIMED_OUT, FAILED))
        done = "{} completed, {} timed out, {} failed".format(*counts)
        print(f"  {self._title} {now_s:4.0f} s: of {self._agents} {working} at work, {done}", flush=True)


def play(scenario: Scenario, system: str, seed: int, python: str, folder: Path, *, goes_first: bool) -> Row:
    """Run it; ``folder`` has the logs then, and what each agent said and left."""
    planned = tasks(scenario.load, seed)
    for task in planned:
        task.lay_out(folder / task.name)
    loop = _loop(scenario, system, folder, script(planned, folder))
    load_before, began = os.getloadavg()[0], time.strftime("%Y-%m-%d %H:%M")
    with ExitStack() as stack:
        stack.callback(loop.stop)
        bus = _start(loop, system)
        crew = Crew(python, folder, url=loop.url, bus=bus, node=loop.node, limit_s=scenario.limit_s)
        stack.callback(crew.close)
        assert loop.double is not None
        ours = [loop.double.pid, *([loop.daemon.process.pid] if loop.daemon.process is not None else [])]
        show = _Show(f"{system}, seed {seed}", len(planned))
        before, began_s = [busy_s(), *map(_cpu_s, ours)], time.monotonic()
        agents = crew.work(planned, show)
        wall_s = time.monotonic() - began_s
        used = [after - at for after, at in zip([busy_s(), *map(_cpu_s, ours)], before, strict=True)]
        hit_rate = _hit_rate(loop.url)
    times_s = [scenario.limit_s if each.outcome == TIMED_OUT else each.took_s for each in agents]
    return Row(
        scenario=scenario.digest,
        system=system,
        seed=seed,
        setting=json.loads(json.dumps(asdict(scenario))),
        agents=agents,
        mean_s=round(float(np.mean(times_s)), 2),
        p95_s=round(float(np.percentile(times_s, 95)), 2),
        hit_rate=round(hit_rate, 4),
        wall_s=round(wall_s, 1),
        cpu_ratio=round(used[0] / (wall_s * cpus()), 3),
        engine_cpu_s=round(used[1], 1),
        control_cpu_s=round(sum(used[2:]), 1),
        memory_gb=round(show.peak_gb, 2),
        cpus=cpus(),
        cpu=model_name(),
        goes_first=goes_first,
        load_before=round(load_before, 1),
        revision=revision(),
        began=began,
    )


def _loop(scenario: Scenario, system: str, folder: Path, said: str) -> Loop:
    preset, toml = (
        (STOCK, f'[admission]\npolicy = "fixed"\nwindow = {scenario.window}\n')
        if system == WINDOW
        else (system, "")
    )
    config, script_file = folder / "penstock.toml", folder / "script.json"
    config.write_text(f'[http]\nlisten = "off"\n{toml}')
    script_file.write_text(said)
    engine = ["--profile", scenario.profile, "--tokens-per-word", str(scenario.tokens_per_word)]
    engine += ["--script", str(script_file), *(["--no-bus"] if system == BARE else [])]
    return Loop(
        folder / "state",
        preset,
        pool_tokens=scenario.pool_tokens,
        time_scale=1.0,
        engine=engine,
        daemon=("--config", str(config)),
        logs=folder,
    )


def _start(loop: Loop, system: str) -> str:
    """Start what belongs to the system: the bus that agents report to, or nothing."""
    if system == BARE:
        loop.start_double()
        return ""
    loop.start()
    return resolve_url(None, loop.node, loop.folder, role=BusRole.AGENT)()


def _cpu_s(number: int) -> float:
    return tree_cpu_s(psutil.Process(number))


def _hit_rate(url: str) -> float:
    """As the engine counts: cached over prompt tokens of all turns."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        page = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines())
    asked, hit = (float(page[f"vllm:prefix_cache_{name}_total"]) for name in ("queries", "hits"))
    return hit / asked if asked else 0.0
