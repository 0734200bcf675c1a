"""What the regret ledger costs an event: at most 5 us, beside what the controller itself takes for it.

    python bench/regret_cost.py [--preset NAME] [--programs N] [--json]

A simulated run is taken down; then its events and decisions are told to a fresh ledger, and its events to a fresh
controller, in turns. The yardstick of the same run is the controller: ``of_the_controller_ratio``. The run's
verdicts are compared with the engine's own counters: ``again_ratio``, ``pins_ratio``. ``live_mb`` is what the
ledger keeps of ``--live`` programs between two turns.
"""

import argparse
import json
import resource
import statistics
import time

from controlplane.core import events as ev
from controlplane.core.commands import Command
from controlplane.core.controller import Controller
from controlplane.core.presets import DEFAULT, PRESETS, preset
from controlplane.core.regret import RegretLedger
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.summary import Summary
from controlplane.lab.workload.synthetic import synthesize

BUDGET_US = 5.0
ROUNDS = 5
Line = tuple[int, ev.Event | Command | None]  # None: a tick


class Taken:
    """A run's events, ticks and decisions in one order, and the ledger that heard them at once."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.events = 0

    def event(self, event: ev.Event, now_ns: int) -> None:
        self.lines.append((now_ns, event))
        self.events += 1

    def tick(self, now_ns: int) -> None:
        self.lines.append((now_ns, None))

    def command(self, command: Command, now_ns: int) -> None:
        self.lines.append((now_ns, command))


def taken(name: str, programs: int) -> tuple[Taken, Summary]:
    """A run that saturates."""
    run = Taken()
    asked = Experiment(
        workload=Workload(trace="drawn", cpus=16),
        trace=synthesize("swe-bench", programs=programs, seed=1),
        arrival=Poisson(0.5),
        hardware=Hardware(pool_tokens=200_000),
        preset=PRESETS[name],
        seed=1,
    )
    return run, simulate(asked, recorder=run).summary


def told(run: Taken) -> RegretLedger:
    """A ledger that heard the run."""
    book = RegretLedger()
    for now_ns, line in run.lines:
        if line is None:
            book.tick(now_ns)
        elif isinstance(line, Command):
            book.command(line, now_ns)
        else:
            book.event(line, now_ns)
    return book


def decided(run: Taken, name: str) -> None:
    """A controller that went through it."""
    controller = Controller(preset(name))
    for now_ns, line in run.lines:
        if line is None:
            controller.tick(now_ns)
        elif not isinstance(line, Command):
            controller.receive(line, now_ns)


def resident_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def live_mb(programs: int) -> float:
    """By which the process grows with a ledger of so many programs; the names are counted, too."""
    book, before_mb = RegretLedger(), resident_mb()
    for number in range(programs):
        ended = ev.TurnEnded(
            publisher=f"n/engine-{number % 8}/1",
            program_id=f"program-{number}",
            turn_id=f"program-{number}/1",
            prompt_tokens=1000 + number,
            tool="bash",
        )
        book.event(ended, number)
    return resident_mb() - before_mb


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default=DEFAULT, choices=sorted(PRESETS))
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--live", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    grown_mb = live_mb(args.live)
    run, summary = taken(args.preset, args.programs)
    book_us, controller_us, walk_us = [], [], []
    for _ in range(ROUNDS):
        for times, work in (
            (book_us, lambda: told(run)),
            (controller_us, lambda: decided(run, args.preset)),
            (walk_us, lambda: [isinstance(line, Command) for _, line in run.lines]),
        ):
            began_ns = time.process_time_ns()
            work()
            times.append((time.process_time_ns() - began_ns) / 1e3 / run.events)
    event_us, decision_us = (
        statistics.median(times) - statistics.median(walk_us) for times in (book_us, controller_us)
    )
    sums = told(run).sums
    pins = round(summary.ttl_misses_per_min * summary.makespan_s / 60)
    result = {
        "preset": args.preset,
        "events": run.events,
        "event_us": event_us,
        "controller_event_us": decision_us,
        "of_the_controller_ratio": event_us / decision_us,
        "again_ratio": sums.all.again_tokens / summary.recomputed_tokens if summary.recomputed_tokens else 1.0,
        "pins_ratio": sums.pins_lost / pins if pins else 1.0,
        "regret_ratio": sums.all.regret_ratio,
        "live_mb": grown_mb,
        "within_budget": event_us <= BUDGET_US,
    }
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:26} {value:.3f}" if isinstance(value, float) else f"{name:26} {value}")


if __name__ == "__main__":
    main()
