"""Presets that bear a paper's name, where they were once found to do something else than it says.

    python bench/fidelity.py [F1 F2 ...] [--jobs 2]

``fidelity.toml`` declares the runs. A row is the mean over seeds: JCT and TTFT in s, shares of prompt tokens, T (of
returns to an evicted context) as it is at the end, over how many returns, the mean number of turns that wait in the
engine, turns retracted there, and commands by kind.
"""

import argparse
import statistics
import sys
import tomllib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.errors import ConfigError
from controlplane.core.scheduling.controller import Controller
from controlplane.lab.simulate import simulate
from controlplane.lab.sweep.spec import Cell, SweepSpec, cells, experiment

TABLES = Path(__file__).with_suffix(".toml")
SHOWN = (cmd.Retain, cmd.Demote, cmd.Discard, cmd.Prefetch, cmd.Pause)
HEAD = "     JCT      p95    TTFT   hits  loaded  tok/s  steps/min      T   over  wait  retr  commands"
Run = tuple[tuple[float, ...], Counter[type[cmd.Command]]]


class Counting(Controller):
    """Counts its commands; a pause where its program was let in again."""

    def tick(self, now_ns: int) -> list[cmd.Command]:
        decided = super().tick(now_ns)
        for command in decided:
            match command:
                case cmd.Pause():
                    self.paused.add(command.program_id)
                case cmd.Admit() if command.program_id in self.paused:
                    self.paused.remove(command.program_id)
                    self.counts[cmd.Pause] += 1
                case _:
                    self.counts[type(command)] += 1
        return decided

    def receive(self, event: ev.Event, now_ns: int) -> None:
        super().receive(event, now_ns)
        if isinstance(event, ev.FirstToken):
            self.waited_ns += event.launch_delay_ns

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.paused, self.counts, self.waited_ns = set[str](), Counter[type[cmd.Command]](), 0


def run(spec: SweepSpec, cell: Cell) -> Run:
    """One run, in a worker process: its figures, in the order of ``HEAD``, and its commands."""
    decides: list[Counting] = []

    def counting(*given: Any) -> Counting:
        decides.append(Counting(*given))
        return decides[0]

    s = simulate(experiment(spec, cell), controller=counting).summary
    delay = decides[0].ledger.estimates.eviction_delay
    figures = s.jct_mean_s, s.jct_p95_s, s.ttft_mean_s, s.cache_hit_ratio, s.loaded_ratio
    rates = s.output_tokens_per_s, s.steps_per_min
    learned = delay.value / 1e9, delay.count
    waiting = decides[0].waited_ns / 1e9 / s.makespan_s  # Little's law
    return (*(each or 0.0 for each in (*figures, *rates)), *learned, waiting, s.retractions), decides[0].counts


def line(seeds: list[Run]) -> str:
    """The mean of some seeds."""
    figures, counts = zip(*seeds, strict=True)
    means = map(statistics.fmean, zip(*figures, strict=True))
    jct, p95, ttft, hits, loaded, tokens, steps, t, over, wait, retracted = means
    total = sum(counts, Counter[type[cmd.Command]]())
    commands = ", ".join(f"{total[kind] / len(seeds):.0f} {kind.__name__}" for kind in SHOWN if total[kind])
    return (
        f"{jct:8.1f}{p95:9.1f}{ttft:8.2f}{hits:7.1%}{loaded:8.1%}{tokens:7.0f}{steps:11.1f}{t:7.2f}{over:7.0f}"
        f"{wait:6.1f}{retracted:6.1f}  {commands or '-'}"
    )


def show(spec: SweepSpec, workers: ProcessPoolExecutor) -> None:
    """A row for each preset and variant in each place."""
    asked = list(cells(spec))
    rows: dict[tuple[str, str, str, str], list[Run]] = {}
    for cell, found in zip(asked, workers.map(run, [spec] * len(asked), asked), strict=True):
        rows.setdefault((cell.workload, cell.hardware, cell.arrival, cell.preset), []).append(found)
    for place, keys in groupby(rows, key=lambda key: key[:3]):
        print(f"  {', '.join(place)}, seeds {', '.join(map(str, spec.seeds))}")
        for key in keys:
            print(f"    {key[3]:25}{line(rows[key])}", flush=True)


def main() -> int:
    tables = tomllib.loads(TABLES.read_text())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(tables)}; default: all")
    parser.add_argument("--jobs", type=int, help="runs at a time; default: one a CPU")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs) as workers:
        for name in options.tables or tables:
            table = tables[name]
            print(f"{name}. {table['title']}\n  {table['paper']}\n{'':29}{HEAD}")
            for sweep in table["sweep"]:
                try:
                    show(msgspec.convert(sweep | {"variants": table.get("variants", {})}, SweepSpec), workers)
                except ConfigError as error:  # such as a trace that is not there
                    print(f"  left out: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
