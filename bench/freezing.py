"""What freezing the sandboxes of programs that wait brings the tool host, simulated.

    python bench/freezing.py [--programs N] [--seeds N] [--plot FILE] [--json]

A storm: all programs come within a minute, to a host of 4 CPUs. A tool computes all the time, and a sandbox takes
a GiB and, awake, a twentieth of a CPU. `limited`: the host has memory for a third of the programs, and the others
wait outside. Ways: sandboxes are never frozen; frozen, and all memory stays resident; frozen, and three quarters
of it are reclaimed, while those that are awake must find room.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import ab  # noqa: F401  this checkout, whichever one is installed

from controlplane.core.model.commands import Command
from controlplane.core.model.events import Event, HostSampled, SandboxSampled
from controlplane.core.policies.presets import PRESETS
from controlplane.core.scheduling.freezing import FreezeRules
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.lab.compare.markdown import table
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.sim.sandboxes import SandboxModel
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Poisson

GIB = 1 << 30
RATE = 2.0  # programs a second
POOL_TOKENS = 128_000
RECLAIMED = 0.75
CPUS = 4.0
WAYS = ("awake", "frozen", "reclaimed")


@dataclass(slots=True)
class Seen:
    """A recorder of the host: what sandboxes hold, and the CPUs in use, over time."""

    t_s: list[float] = field(default_factory=list)
    held_gib: list[float] = field(default_factory=list)
    cpu_ratio: list[float] = field(default_factory=list)
    frozen: list[int] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)  # wakes
    late_s: list[float] = field(default_factory=list)
    _known: dict[str, SandboxSampled] = field(default_factory=dict)

    def event(self, event: Event, now_ns: int) -> None:
        if isinstance(event, SandboxSampled):
            before = self._known.pop(event.program_id, None)
            if not event.gone:
                self._known[event.program_id] = event
            if before is not None and before.frozen and not event.frozen and event.took_ns:
                self.took_s.append(event.took_ns / 1e9)
                if event.late_ns:
                    self.late_s.append(event.late_ns / 1e9)
        elif isinstance(event, HostSampled):
            self.look(now_ns / 1e9, event.cpu_use_ratio)

    def look(self, t_s: float, cpu_ratio: float, held_bytes: int | None = None) -> None:
        """``held_bytes``: as it was measured; else as sandboxes tell."""
        if held_bytes is None:
            held_bytes = sum(each.held_bytes for each in self._known.values())
        self.t_s.append(t_s)
        self.cpu_ratio.append(cpu_ratio)
        self.held_gib.append(held_bytes / GIB)
        self.frozen.append(sum(each.frozen for each in self._known.values()))

    def tick(self, now_ns: int) -> None: ...
    def command(self, command: Command, now_ns: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One way through a storm; means over seeds."""

    storm: str
    preset: str
    way: str
    mean_s: float
    p99_s: float
    makespan_s: float
    tool_times: float  # over their times alone
    cpu_ratio: float
    peak_gib: float
    most_frozen: int
    woken: int
    late: int
    latest_s: float


def storm(preset: str, way: str, *, programs: int, limited: bool, seed: int) -> tuple[Row, Seen]:
    """Run one."""
    host_gb = programs / 3.0 if limited else 0.0
    reclaimed = RECLAIMED if way == "reclaimed" else 0.0
    rules = FreezeRules(freeze=way != "awake", memory_gb=host_gb if reclaimed else 0.0)
    seen = Seen()
    run = simulate(
        Experiment(
            workload=Workload(trace="synthetic:swe-bench", programs=programs, contention=True, cpus=CPUS),
            arrival=Poisson(RATE),
            preset=PRESETS[preset],
            hardware=Hardware(pool_tokens=POOL_TOKENS),
            rules=replace(ControlRules(), sandboxes=rules),
            sandboxes=SandboxModel(reclaimed_ratio=reclaimed, host_gb=host_gb, wake_s=0.5 if reclaimed else 0.02),
            seed=seed,
        ),
        recorder=seen,
    )
    summary = run.summary
    row = Row(
        storm="limited" if limited else "any memory",
        preset=preset,
        way=way,
        mean_s=summary.jct_mean_s or 0.0,
        p99_s=summary.jct_p99_s or 0.0,
        makespan_s=summary.makespan_s,
        tool_times=summary.tool_slowdown_ratio,
        cpu_ratio=statistics.fmean(seen.cpu_ratio),
        peak_gib=max(seen.held_gib),
        most_frozen=max(seen.frozen),
        woken=len(seen.took_s),
        late=len(seen.late_s),
        latest_s=max(seen.late_s, default=0.0),
    )
    return row, seen


def mean_of(rows: Sequence[Row]) -> Row:
    values = {name: [asdict(row)[name] for row in rows] for name in asdict(rows[0])}
    return Row(
        **{
            name: seen[0] if isinstance(seen[0], str) else type(seen[0])(statistics.fmean(seen))
            for name, seen in values.items()
        }
    )


def shown(rows: Sequence[Any]) -> list[str]:
    """Lines of a table: the head, and dataclasses of one kind."""
    cells = [[f"{v:.2f}" if isinstance(v, float) else str(v) for v in asdict(row).values()] for row in rows]
    return list(table(list(asdict(rows[0])), cells))


def plot(path: Path, runs: Sequence[tuple[str, str, Seen]], cpus: float) -> None:
    """Memory and CPUs over time: a column for each title, a line for each way."""
    from matplotlib.figure import Figure

    titles = list(dict.fromkeys(title for title, _, _ in runs))
    figure = Figure(figsize=(4.5 * len(titles), 5.5), layout="constrained")
    panels = figure.subplots(2, len(titles), squeeze=False, sharex="col")
    for title, way, seen in runs:
        memory, busy = panels[:, titles.index(title)]
        memory.step(seen.t_s, seen.held_gib, where="post", label=way)
        busy.step(seen.t_s, [cpus * each for each in seen.cpu_ratio], where="post", label=way)
        memory.set_title(title)
        busy.set_xlabel("s")
    panels[0, 0].set_ylabel("GiB that sandboxes hold")
    panels[1, 0].set_ylabel("CPUs in use")
    panels[0, 0].legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=90)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--presets", default="penstock,mars,thunderagent")
    parser.add_argument("--plot", type=Path, help="write memory and CPUs over time to this file (.svg, .png)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: list[Row] = []
    runs: list[tuple[str, str, Seen]] = []
    for limited in (False, True):
        for preset in options.presets.split(","):
            for way in WAYS:
                seeds = [
                    storm(preset, way, programs=options.programs, limited=limited, seed=seed)
                    for seed in range(1, options.seeds + 1)
                ]
                found.append(mean_of([row for row, _ in seeds]))
                runs.append((f"{preset}, {found[-1].storm}", way, seeds[0][1]))
    print(json.dumps([asdict(each) for each in found]) if options.json else "\n".join(shown(found)))
    if options.plot:
        plot(options.plot, runs, CPUS)


if __name__ == "__main__":
    main()
