"""What it costs an event that programs' time lines are kept, and what they take of memory.

    python bench/timeline_cost.py [--preset NAME] [--programs N] [--json]

A simulated run is taken down; then its events and decisions are told to a fresh record. ``event_us`` is CPU time
for each event, a median of several rounds; ``full_mb`` is by how much the process grows until the record is full
and makes room for each further entry, ``entries`` of many programs; ``look_ms`` and ``look_bytes`` are one
program's time line with as many entries as are ever told at once.
"""

import argparse
import json
import resource
import statistics
import time

import msgspec
from regret_cost import ROUNDS, Taken, taken

from controlplane.core import events as ev
from controlplane.core.commands import Command
from controlplane.core.controller import Controller
from controlplane.core.presets import DEFAULT, PRESETS, preset
from controlplane.shell.timeline_view import MOST_TOLD, timeline
from controlplane.shell.timelines import MOST_ENTRIES, Timelines

BUDGET_US = 5.0


def fresh() -> Timelines:
    """A record beside a controller that knows nobody."""
    controller = Controller(preset(DEFAULT))
    return Timelines(lambda: controller)


def told(run: Taken) -> Timelines:
    """A record that heard the run."""
    kept = fresh()
    for now_ns, line in run.lines:
        if isinstance(line, Command):
            kept.command(line, now_ns)
        elif line is not None:
            kept.event(line, now_ns)
    return kept


def turn(kept: Timelines, program: str, number: int) -> None:
    """One turn from its submission to its end."""
    ids = {"publisher": "n/engine/1", "program_id": program, "turn_id": f"{program}/{number}"}
    kept.event(ev.TurnSubmitted(**ids, projected_blocks=1), 10**18 + number)
    kept.event(ev.TurnEnded(**ids, prompt_tokens=9000 + number, output_tokens=300), 10**18 + number + 1)


def full_mb() -> float:
    """By which the process grows with a full record, five entries a program."""
    before, kept = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, fresh()
    for number in range(MOST_ENTRIES + 1000):
        turn(kept, f"tenant-7/session-{number // 5:08x}", number)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def look() -> tuple[float, int]:
    """One look at a program that did very much: ms, and bytes."""
    kept = fresh()
    for number in range(2 * MOST_TOLD):
        turn(kept, "p", number)
    began_ns = time.process_time_ns()
    body = msgspec.json.encode(timeline(kept, "p", 2 * 10**18))
    return (time.process_time_ns() - began_ns) / 1e6, len(body)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default=DEFAULT, choices=sorted(PRESETS))
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    grown_mb = full_mb()
    run, _ = taken(args.preset, args.programs)
    times_us = []
    for _ in range(ROUNDS):
        began_ns = time.process_time_ns()
        told(run)
        times_us.append((time.process_time_ns() - began_ns) / 1e3 / run.events)
    look_ms, look_bytes = look()
    event_us = statistics.median(times_us)
    result = {
        "preset": args.preset,
        "events": run.events,
        "event_us": event_us,
        "entries": MOST_ENTRIES,
        "full_mb": grown_mb,
        "look_ms": look_ms,
        "look_bytes": look_bytes,
        "within_budget": event_us <= BUDGET_US,
    }
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:14} {value:.3f}" if isinstance(value, float) else f"{name:14} {value}")


if __name__ == "__main__":
    main()
