"""A day on the engine double in which the preset gets worse at noon, an experiment is on, and daemons are killed.

    python bench/switchback_live.py [--time-scale S] [--half-day HOURS] [--seed N]

The daemon's file is the same all day: a window of two programs, wide enough before noon. From then on five times
as many programs come, whether or not others have ended: for them it is too narrow, and the engine has room for all.
An hour of this day is a slice, 600 s of the engine's time; noon is between two blocks. The daemon is killed
(SIGKILL) an hour after noon, and again an hour after the experiment has ended. A line, with the hours after noon,
when its status says something new, or anything after a restart: the figure, a finding, what is in force once the
experiment has ended. Last what programs took.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed

from controlplane.cli.ask import daemon
from controlplane.core.model.errors import ControlPlaneError
from controlplane.core.model.types import seconds
from controlplane.daemon.bus.clock import Clock
from controlplane.lab.demo.node import command_running
from controlplane.lab.experiment import Workload
from controlplane.lab.load.options import ReplayOptions
from controlplane.lab.load.replay import replay
from controlplane.lab.surroundings import undisturbed
from controlplane.lab.workload.arrivals import Recorded, arrival_times_ns
from controlplane.lab.workload.named import Wanted, named_workload
from controlplane.lab.workload.run import RunResult
from controlplane.operate.gain import standing_line
from controlplane.transport.endpoint import resolve_url
from controlplane.transport.roles import BusRole
from controlplane.wire.control import Fields

NODE, WORKLOAD, TURNS, TOKENS_PER_WORD, POOL_TOKENS = "day", "synthetic:swe-bench", 3, 64, 12_000
HOUR_S = 600.0
HOUR_NS = seconds(HOUR_S)
RATES = (0.05, 0.24)  # programs a second, before noon and after
LOOK_S = 2.0
FINDINGS = ("preset_loses", "gain_unclear")
CONFIG = f"""
preset = "penstock"
[http]
listen = "off"
[admission]
policy = "fixed"
window = 2
[experiment]
slice_s = {HOUR_S}
washout_s = {HOUR_S / 4}
"""


class Watch(threading.Thread):
    """Starts a daemon, tells what it says, kills it and starts it again."""

    def __init__(self, folder: Path, common: list[str], scale: float, stack: ExitStack) -> None:
        super().__init__(daemon=True)
        self._folder, self._stack, self._clock = folder, stack, Clock(scale)
        self._up = ["up", "--config", str(folder / "penstock.toml"), *common]
        self._over = threading.Event()
        self._said: dict[str, str] = {}
        self._kill_ns: list[int] = []
        self.noon_ns = self.ended_ns = 0
        self._start_daemon()

    def begin(self, half_day: int) -> int:
        """How long it is until noon, so many hours or a block more."""
        now_ns, block_ns = self._now_ns(), 2 * HOUR_NS
        self.noon_ns = -(-(now_ns + half_day * HOUR_NS) // block_ns) * block_ns
        self._kill_ns.append(self.noon_ns + HOUR_NS)
        self.start()
        return self.noon_ns - now_ns

    def end(self) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(LOOK_S):
            try:
                with daemon(None, NODE, self._folder) as client:
                    self._hear(client.call("GetStatus"))
            except ControlPlaneError as error:
                self._tell("status", f"none: {type(error).__name__}")
            if self._kill_ns and self._now_ns() >= self._kill_ns[0]:
                self._kill_ns.pop(0)
                self._daemon.kill()
                self._tell("daemon", "killed")
                self._start_daemon()
                self._said.clear()
                self._tell("daemon", "started again")

    def _start_daemon(self) -> None:
        running = command_running(self._up, ready=r'"event": "up"|\bup\b.*preset')
        self._daemon, _ = self._stack.enter_context(running)

    def _hear(self, status: Fields) -> None:
        found = status.experiment
        for each in found.changes[:1]:  # of the completion
            ends = f" [{each.low:+.0%}, {each.high:+.0%}]" if each.is_bounded else ""
            of = f"{found.programs} programs in {each.blocks} blocks, {found.left_out} left out"
            self._tell("gain", f"{each.value:+.0%}{ends} of {of}; {found.censored} censored")
        for each in status.findings:
            if each.name in FINDINGS:
                self._tell(each.name, each.found)
        if not found.ended_ns:
            return
        if not self.ended_ns:
            self.ended_ns = found.ended_ns
            self._kill_ns.append(found.ended_ns + HOUR_NS)
        self._tell("ended", f"{standing_line(status)} (from {self._hours(found.since_ns):+.1f} h on)")
        self._tell("in force", status.preset)

    def _tell(self, what: str, text: str) -> None:
        if self._said.get(what) != text:
            self._said[what] = text
            print(f"{self._hours(self._now_ns()):+6.1f} h  {what}: {text}", flush=True)

    def _now_ns(self) -> int:
        return self._clock.from_wall_ns(time.time_ns())

    def _hours(self, at_ns: int) -> float:
        return (at_ns - self.noon_ns) / HOUR_NS


def day(scale: float, half_day: int, seed: int) -> None:
    """Run it and tell."""
    counts = [round(rate * (half_day + more) * HOUR_S) for rate, more in zip(RATES, (3, 0), strict=True)]
    morning, then = (arrival_times_ns(count, rate, seed) for count, rate in zip(counts, RATES, strict=True))
    trace = named_workload(WORKLOAD, Wanted(programs=sum(counts), seed=seed))
    programs = [replace(each, turns=each.turns[:TURNS]) for each in trace.programs]
    with undisturbed(), tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "penstock.toml").write_text(CONFIG)
        common = ["--node", NODE, "--state-dir", name, "--time-scale", f"{scale:g}"]
        watch = Watch(folder, common, scale, stack)
        double = ["--port", "0", "--pool-tokens", str(POOL_TOKENS), "--tokens-per-word", str(TOKENS_PER_WORD)]
        engine = command_running(["engine-double", *double, *common], ready=r"listens on (\S+)")
        _, found = stack.enter_context(engine)
        nats = resolve_url(None, NODE, folder, role=BusRole.AGENT)
        noon_ns = watch.begin(half_day)
        times_ns = [at for at in morning if at < noon_ns] + [noon_ns + at for at in then]
        options = ReplayOptions(
            trace=replace(trace, programs=tuple(programs[: len(times_ns)])),
            workload=Workload(trace=WORKLOAD),
            url=found.group(1),
            arrival=Recorded(tuple(times_ns)),
            seed=seed,
            tokens_per_word=TOKENS_PER_WORD,
            time_scale=scale,
            nats=nats,
            node=NODE,
        )
        try:
            result = replay(options)
        finally:
            watch.end()
    told(result, noon_ns, noon_ns + watch.ended_ns - watch.noon_ns if watch.ended_ns else sys.maxsize)


def told(result: RunResult, noon_ns: int, ended_ns: int) -> None:
    """What programs took, by when they came."""
    for what, begin_ns, end_ns in (
        ("before noon", 0, noon_ns),
        ("until it ended", noon_ns, ended_ns),
        ("then", ended_ns, sys.maxsize),
    ):
        took_s = [
            p.completion_ns / 1e9 for p in result.programs if begin_ns <= p.arrived_ns < end_ns and not p.failed
        ]
        if took_s:
            print(f"{what}: {statistics.fmean(took_s):.1f} s, {len(took_s)} programs")
    print(f"failed: {sum(each.failed for each in result.programs)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-scale", type=float, default=30.0)
    parser.add_argument("--half-day", type=int, default=16, help="hours before noon, and after")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    day(options.time_scale, options.half_day, options.seed)


if __name__ == "__main__":
    main()
