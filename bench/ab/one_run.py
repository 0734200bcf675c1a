"""One run: a fresh engine, nats-server and daemon, the programs of its seed, and what they felt."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine_server import EngineServer
from support.daemon_process import DaemonProcess
from support.outside_gates import gate_outside

from ab import ROOT, engine, results, systems
from ab.kinds import GPU
from ab.machine import ARITHMETIC_S, OthersWatch, arithmetic_ms, cpus, gpu_name, model_name, wait_for_quiet
from ab.scenario import Scenario
from controlplane.config import ENVIRONMENT
from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.lab.load.options import ReplayOptions
from controlplane.lab.load.progress import Display, ReplayProgress
from controlplane.lab.load.replay import replay
from controlplane.lab.load.watch import StatusWatch
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.provenance import revision
from controlplane.lab.workload.run import RunResult
from controlplane.transport.endpoint import resolve_url
from controlplane.transport.roles import BusRole

NODE = "ab"
_READY_S = 30.0
RECORD = "events.jsonl.gz"
_SHOWN_EVERY_S = 30.0
_SMOKE_LOOK_S = 0.05
# Longer than any run: what is compared is when a program gets in, not a client's patience.
_HOLD_S = 36_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run to do."""

    cell: results.Cell
    system: systems.System

    def __str__(self) -> str:
        return f"{self.system.name} at {self.cell.rate:g}/s, seed {self.cell.seed}"


class Lines(Display):
    """A line every half a minute."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown_s = time.monotonic()

    def update(self, progress: ReplayProgress) -> None:
        if time.monotonic() - self._shown_s >= _SHOWN_EVERY_S:
            self._shown_s = time.monotonic()
            self.note(f"{progress.programs_ended}/{progress.programs} programs, {progress.line()}")

    def note(self, text: str) -> None:
        print(f"  {self._label}: {text}", flush=True)

    def close(self) -> None:
        """Nothing to put away."""


def play(
    job: Job, scenario: Scenario, environment: Path, keep: Path | None, usual_ms: float = 0.0
) -> results.Row | None:
    """Do it; None if it was interrupted. ``keep``: a folder for its logs and all that was measured.

    ``usual_ms``: as ``wait_for_quiet`` takes it.
    """
    load_before = os.getloadavg()[0]
    if not scenario.is_smoke:
        wait_for_quiet(usual_ms)
    look_s = _SMOKE_LOOK_S if scenario.is_smoke else ARITHMETIC_S
    before_ms = arithmetic_ms(look_s)
    began, began_s = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    others = OthersWatch()
    with tempfile.TemporaryDirectory(prefix="penstock-ab-") as scratch:
        folder = Path(scratch)
        try:
            with served(job.system, scenario, environment, folder, recorded=keep is not None) as (server, url):
                began_cpu_s = engine.cpu_s(server)
                result = replayed(job, scenario, url, folder)
                counts = {
                    "engine_cpu_s": round(engine.cpu_s(server) - began_cpu_s, 2),
                    "retractions": engine.retractions(server, scenario.engine.engine),
                    "hook_failures": _hook_failures(_health(server.url)) if job.system.has_plugin else 0,
                }
                others_ratio = others.ratio()
        finally:
            _keep_logs(folder, keep, job)
    if result.cut:
        return None
    if keep is not None:
        result.save(_name(keep, job, "json"))
    return results.Row(
        cell=job.cell,
        load=str(scenario),
        programs=len(result.programs),
        figures=_figures(result, counts),
        **_columns(result),
        toml=job.system.toml,
        effective=systems.effective_digest(job.system),
        code=systems.code_digest(job.system),
        revision=revision(),
        versions=engine.versions(environment, scenario.engine.engine),
        cpus=cpus(),
        cpu=model_name(),
        gpu=gpu_name() if scenario.engine.device == GPU else "",
        transform_ms=(before_ms, arithmetic_ms(look_s)),
        telemetry=scenario.telemetry,
        load_before=round(load_before, 2),
        others_ratio=round(others_ratio, 3),
        began=began,
        wall_s=round(time.monotonic() - began_s, 1),
    )


@contextlib.contextmanager
def served(
    system: systems.System,
    scenario: Scenario,
    environment: Path,
    folder: Path,
    *,
    recorded: bool = False,
) -> Iterator[tuple[EngineServer, str]]:
    """The engine, and where clients reach it; daemon and nats-server beside it where the system has them.

    ``recorded``: the daemon writes its events down.
    """
    for name in ENVIRONMENT:
        os.environ.pop(name, None)  # what this shell is set to is no part of the comparison
    with contextlib.ExitStack() as stack:
        plugins: tuple[str, ...] = ()
        variables = dict(system.variables)
        if system.has_daemon:
            (folder / "penstock.toml").write_text(system.toml)
            arguments = ["--config", str(folder / "penstock.toml")]
            if recorded:
                arguments += ["--record", str(folder / RECORD)]
            daemon = DaemonProcess(folder / "daemon", *arguments, node=NODE)
            stack.callback(_end, daemon)
            daemon.start()
            plugins = ("penstock",) if system.has_plugin else ()
            variables = {
                "PENSTOCK_NODE": NODE,
                "PENSTOCK_STATE_DIR": str(daemon.folder),
                "PENSTOCK_GATE_HOLD_S": str(_HOLD_S),
            }
        server = engine.start_engine(
            folder, environment, scenario.engine, plugins=plugins, variables=variables, flags=system.flags
        )
        stack.callback(server.kill)
        url = server.url
        if system.outside:
            more = ("--node", NODE, *getattr(server, "gate_options", ()))
            gate = gate_outside(url, daemon.folder, folder / "gate.log", *more, variables=variables)
            url, _ = stack.enter_context(gate)
        if system.has_daemon:
            _wait_until_governed(url)
        yield server, url


def _end(daemon: DaemonProcess) -> None:
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        daemon.clean_up()


def _wait_until_governed(url: str) -> None:
    """The gate hears the daemon. Raises ``SystemExit`` where it does not."""
    deadline_s = time.monotonic() + _READY_S
    while (health := _health(url)).get("mode") != "governed":
        if time.monotonic() > deadline_s:
            raise SystemExit(f"the gate never heard the daemon: {json.dumps(health)}")
        time.sleep(0.1)


def _health(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{url}/penstock/health", timeout=5) as response:
            return dict(json.load(response))
    except (urllib.error.URLError, OSError, ValueError):
        return {}


def _hook_failures(health: Mapping[str, Any]) -> int:
    """Of both processes that the plugin is in."""
    sides = (health.get(name) or {} for name in ("plugin", "scheduler"))
    return sum(sum(side.get("hook_failures", {}).values()) for side in sides)


def replayed(job: Job, scenario: Scenario, url: str, folder: Path) -> RunResult:
    """The programs of the job's seed, at its rate, on the engine that ``served`` started in ``folder``."""
    seed, system = job.cell.seed, job.system
    bus = resolve_url(None, NODE, folder / "daemon", role=BusRole.AGENT) if system.has_daemon else None
    reader = resolve_url(None, NODE, folder / "daemon", role=BusRole.READER)
    with contextlib.nullcontext() if bus is None else StatusWatch(reader, NODE) as watch:
        options = ReplayOptions(
            trace=scenario.workload(seed),
            workload=scenario.described(scenario.scale),
            url=url,
            arrival=Poisson(job.cell.rate),
            # The same words for every system: a program's id seeds them.
            label="ab",
            run_id=str(seed),
            preset=system.name,
            seed=seed,
            first_come=system.first_come,
            nats=bus,
            node=NODE,
            observe=None if watch is None else watch.latest,
        )
        return replay(options, Lines(system.name))


def _columns(result: RunResult) -> dict[str, Any]:
    """What a report pairs and resamples: programs in the order of their arrival."""
    programs = sorted(result.programs, key=lambda program: program.program_id)
    ttft: dict[str, list[float]] = {program.program_id: [] for program in programs}
    for turn in sorted(result.turns, key=lambda turn: turn.index):
        if not turn.error and turn.first_token_ns:
            ttft[turn.program_id].append(_seconds(turn.first_token_ns - turn.queued_ns, 3))
    return {
        "jct_s": [None if program.failed else _seconds(program.completion_ns, 2) for program in programs],
        "ttft_s": list(ttft.values()),
        "errors": sorted({program.error for program in programs if program.error})[:5],
    }


def _figures(result: RunResult, counts: Mapping[str, Any]) -> results.Figures:
    summary = result.summary
    good = [turn for turn in result.turns if not turn.error]
    return results.Figures(
        jct_mean_s=round(summary.jct_mean_s or 0, 2),
        jct_p50_s=round(summary.jct_p50_s or 0, 2),
        jct_p95_s=round(summary.jct_p95_s or 0, 2),
        ttft_p50_s=round(summary.ttft_p50_s or 0, 3),
        ttft_p99_s=round(summary.ttft_p99_s or 0, 3),
        hit_rate=round(summary.cache_hit_ratio or 0, 4),
        turns_per_min=round(summary.steps_per_min or 0, 2),
        output_tokens_per_s=round(summary.output_tokens_per_s or 0, 2),
        makespan_s=round(summary.makespan_s, 1),
        longest_hold_s=round(summary.longest_hold_s or 0, 2),
        programs_failed=summary.programs_failed,
        turns=summary.turns_ended,
        prompt_tokens=sum(turn.prompt_tokens for turn in good),
        cached_tokens=sum(turn.cached_tokens for turn in good),
        output_tokens=sum(turn.output_tokens for turn in good),
        retries=int(result.facts.get("retries", 0)),
        tpot_mean_s=round(summary.tpot_mean_s or 0, 5),
        **counts,
    )


def _seconds(duration_ns: int, digits: int) -> float:
    return round(duration_ns / NANOSECONDS_PER_SECOND, digits)


def _keep_logs(folder: Path, keep: Path | None, job: Job) -> None:
    if keep is None:
        return
    logs = {"engine.log": "engine.log", "gate.log": "gate.log", "daemon.log": "daemon/daemon.log", RECORD: RECORD}
    for name, path in logs.items():
        if (folder / path).exists():
            _name(keep, job, name).write_bytes((folder / path).read_bytes())


def _name(keep: Path, job: Job, ending: str) -> Path:
    keep.mkdir(parents=True, exist_ok=True)
    cell = job.cell
    return keep / f"{cell.scenario}-{cell.rate:g}-{cell.seed}-{cell.system}.{ending}"


def prepare() -> None:
    """Processes that are started find this checkout before any other; to be ended is to be interrupted."""
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = str(ROOT)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
