"""One controller tick with 10,000 programs of which 1,000 wait (budget: at most 20 ms).

    python bench/controller_tick.py [--programs N] [--waiting N] [--json]

Four ticks are timed: one that only senses and observes, one that admits nobody because no slot is free after
ordering is skipped, the worst one, which orders the whole queue and admits a tenth of it, and the usual one: nobody
waits, one more asks and is let in, among a tenth of the programs. The yardstick of the same run is sorting the
program records by arrival.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds
from controlplane.core.policies.admission.fixed import Fixed
from controlplane.core.policies.presets import DEFAULT, preset
from controlplane.core.scheduling.controller import Controller

BUDGET_MS = 20.0
ROUNDS = 15


def crowded(programs: int, waiting: int, *, window: int = 0) -> Controller:
    """The default preset's controller, ``waiting`` of ``programs`` wait; ``window`` > 0 replaces AIMD's."""
    from dataclasses import replace

    chosen = preset(DEFAULT)
    if window:
        chosen = replace(chosen, admission=Fixed(window=window))
    controller = Controller(chosen)
    controller.receive(ev.PoolSampled(total_blocks=1_000_000, free_blocks=0, block_tokens=16), 0)
    controller.receive(ev.HostSampled(cpus=64), 0)
    for index in range(programs - waiting):
        name, turn = f"active-{index}", f"turn-{index}"
        controller.receive(ev.TurnSubmitted(program_id=name, turn_id=turn, projected_blocks=1000), index)
        if index % 3 == 0:
            ended = ev.TurnEnded(program_id=name, turn_id=turn, prompt_tokens=9000, output_tokens=100)
            controller.receive(ended, index)
            controller.receive(ev.ToolStarted(program_id=name, call_id=f"call-{index}", tool="bash"), index)
    for index in range(waiting):
        queued = ev.TurnQueued(
            program_id=f"waiting-{index}", turn_id=f"held-{index}", prompt_tokens=1000 + index * 7919 % 50_000
        )
        controller.receive(queued, programs + index)
    return controller


def timed_ms(prepare: Callable[[], Controller], *, at_ns: int) -> float:
    """Median time of one tick."""
    times = []
    for _ in range(ROUNDS):
        controller = prepare()
        began = time.perf_counter()
        controller.tick(at_ns)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def one_more_ms(programs: int) -> float:
    """Median time of a tick that lets in the one that asks."""
    controller = crowded(programs, 0, window=1_000_000)
    controller.tick(seconds(1))
    times = []
    for index in range(ROUNDS):
        queued = ev.TurnQueued(program_id=f"more-{index}", turn_id=f"more-{index}/1", prompt_tokens=4000)
        controller.receive(queued, seconds(1) + index)
        began = time.perf_counter()
        controller.tick(seconds(1) + index)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--waiting", type=int, default=1_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    n, waiting = args.programs, args.waiting

    def settled() -> Controller:
        controller = crowded(n, waiting)
        controller.tick(seconds(1))
        controller.ledger.programs.changed.clear()
        return controller

    result = {
        "programs": n,
        "waiting": waiting,
        "interval_tick_ms": timed_ms(settled, at_ns=seconds(3)),
        "first_tick_ms": timed_ms(lambda: crowded(n, waiting), at_ns=seconds(1)),
        "admitting_tick_ms": timed_ms(
            lambda: crowded(n, waiting, window=n - waiting + waiting // 10), at_ns=seconds(1)
        ),
    }
    result["one_more_ms"] = one_more_ms(n // 10)
    records = list(crowded(n, waiting).ledger.programs.by_name.values())
    began = time.perf_counter()
    sorted(records, key=lambda program: -program.arrived_at_ns)
    result["sort_records_ms"] = (time.perf_counter() - began) * 1e3
    worst = max(result["interval_tick_ms"], result["first_tick_ms"], result["admitting_tick_ms"])
    result["worst_over_sort_ratio"] = worst / result["sort_records_ms"]
    result["within_budget"] = worst <= BUDGET_MS
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:24} {value:.3f}" if isinstance(value, float) else f"{name:24} {value}")


if __name__ == "__main__":
    main()
