"""What one controller costs as engines and programs grow: where one fleet ends and the next one has to begin.

    python bench/fleet_scale.py [--replicas 10,100,1000] [--programs 100] [--json]
    python bench/fleet_scale.py --simulate [--replicas 1000] [--cells 1,10,100] [--on local|ray] [--jobs N] [--json]

A controller knows so many engines and so many programs on each. Timed are: an engine's sample, a turn's events with
the tick that places the program's next one, a newcomer's turn with the tick that lets it in, the tick that ends a
control interval, and a turn once more while ``--waiting`` programs wait that fit nowhere. From samples, turns and
intervals follows how many CPUs a fleet takes whose programs have a turn in so many seconds (``--turn-s``).

With ``--simulate`` the fleet itself runs in the simulator, with few turns a program, under one controller and split
into cells (``scaled/cells.py``). The times are of its own decisions, at the instants at which they were due.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scaled.cells import Fleet, run_all, split, summed

from controlplane.core import events as ev
from controlplane.core.controller import Controller
from controlplane.core.presets import DEFAULT, preset
from controlplane.core.types import seconds
from controlplane.lab.sweep.executors import executor

ROUNDS = 30
POOL_BLOCKS, BLOCK_TOKENS = 20_000, 16
GATE = "fleet/gate-fleet/1"


def crowd(replicas: int, each: int) -> Controller:
    """``each`` programs on each engine: of ten one runs, one has just ended its turn, the others' tools run."""
    chosen = preset(DEFAULT)
    wide = replace(chosen.admission, window_initial=1e6, window_min=1e6, window_max=1e6)  # type: ignore[type-var]
    controller = Controller(replace(chosen, admission=wide))
    places = [f"node-{number:04}/engine-30000/1" for number in range(replicas)]
    controller.receive(ev.EnginesListed(serving=tuple(place.rpartition("/")[0] for place in places)), 0)
    for place in places:
        controller.receive(sample(place), 0)
    programs = controller.ledger.programs
    for index in range(replicas * each):
        name, place = f"program-{index}", places[index % replicas]
        begun = ev.TurnSubmitted(publisher=place, program_id=name, turn_id=f"{name}/1", projected_blocks=100)
        controller.receive(begun, index)
        programs.by_name[name].gate = GATE.rpartition("/")[0]
        if index // replicas % 10:
            controller.receive(ended(place, name, 1), index)
    programs.unasked.clear()
    programs.gated = True
    programs.changed.clear()
    for program in programs.by_name.values():  # their next turns are placed
        program.placed, program.placed_turn = program.replica, program.turn_index
    controller.tick(seconds(1))
    return controller


def sample(place: str) -> ev.PoolSampled:
    free = POOL_BLOCKS // 2
    return ev.PoolSampled(publisher=place, total_blocks=POOL_BLOCKS, free_blocks=free, block_tokens=BLOCK_TOKENS)


def ended(place: str, name: str, turn: int) -> ev.TurnEnded:
    return ev.TurnEnded(
        publisher=place, program_id=name, turn_id=f"{name}/{turn}", prompt_tokens=1500, output_tokens=100
    )


def timed_ms(act: Callable[[int], Any]) -> float:
    """Median, of CPU."""
    times = []
    for index in range(ROUNDS):
        began = time.process_time()
        act(index)
        times.append((time.process_time() - began) * 1e3)
    return statistics.median(times)


def measured(replicas: int, each: int, turn_s: float, waiting: int) -> dict[str, float]:
    began = time.process_time()
    controller = crowd(replicas, each)
    built_s = time.process_time() - began
    programs, now_ns = controller.ledger.programs.by_name, seconds(1)
    places = [f"{place}/1" for place in sorted(controller.ledger.engines.pools)]
    resting = [name for name, program in programs.items() if not program.open_turns]

    def turn(index: int) -> None:
        name = resting.pop()
        place, number = f"{programs[name].replica}/1", programs[name].turn_index + 1
        of = {"publisher": place, "program_id": name, "turn_id": f"{name}/{number}"}
        controller.receive(ev.TurnSubmitted(**of, projected_blocks=110), now_ns + index)
        controller.receive(ev.FirstToken(**of, prompt_tokens=1500, cached_tokens=1400), now_ns + index)
        controller.receive(ended(place, name, number), now_ns + index)
        controller.tick(now_ns + index)

    def newcomer(index: int) -> None:
        asks = ev.TurnQueued(
            publisher=GATE, program_id=f"new-{index}", turn_id=f"new-{index}/1", prompt_tokens=1500
        )
        controller.receive(asks, now_ns + index)
        controller.tick(now_ns + index)

    found = {
        "replicas": replicas,
        "programs": replicas * each,
        "sample_ms": timed_ms(lambda index: controller.receive(sample(places[index % replicas]), now_ns)),
        "turn_ms": timed_ms(turn),
        "newcomer_ms": timed_ms(newcomer),
        "interval_tick_ms": timed_ms(lambda index: controller.tick(now_ns + seconds(2) * (index + 1))),
    }
    for index in range(waiting):
        ids = {"program_id": f"large-{index}", "turn_id": f"large-{index}/1"}
        asks = ev.TurnQueued(publisher=GATE, **ids, prompt_tokens=2 * POOL_BLOCKS * BLOCK_TOKENS)
        controller.receive(asks, now_ns + seconds(2) * (ROUNDS + 1))
    now_ns += seconds(2) * (ROUNDS + 1)
    controller.tick(now_ns)
    found["turn_while_waiting_ms"] = timed_ms(turn)
    turns = replicas * each / turn_s
    found["cpus"] = (replicas * found["sample_ms"] + turns * found["turn_ms"] + found["interval_tick_ms"]) / 1e3
    return found | {"built_s": built_s}


def simulated(args: argparse.Namespace) -> list[dict[str, float]]:
    """A row for each number of engines, split in each of the ways that divide them."""
    rows = []
    for replicas in map(int, args.replicas.split(",")):
        fleet = Fleet(
            replicas=replicas,
            programs=args.programs,
            turns=args.turns,
            arrive_s=args.arrive_s,
            pool_tokens=args.pool_tokens,
            preset=args.preset,
            routing=args.routing,
            seed=args.seed,
        )
        for cells in map(int, args.cells.split(",")):
            if replicas % cells:
                continue
            began_s, found = time.perf_counter(), []
            with executor(args.on, args.jobs, cells) as where:
                for each in run_all(split(fleet, cells), where):
                    found.append(each)
                    print(f"  {replicas} engines, {len(found)} of {cells} cells", file=sys.stderr, flush=True)
            rows.append(summed(replicas, found, time.perf_counter() - began_s))
    return rows


def show_simulated(rows: list[dict[str, float]]) -> None:
    columns = [
        ("engines", "{engines:.0f}"),
        ("cells", "{cells:.0f}"),
        ("programs", "{programs:.0f}"),
        ("turns", "{turns:.0f}"),
        ("failed", "{failed:.0f}"),
        ("events", "{events:.0f}"),
        ("wall s", "{wall_s:.0f}"),
        ("CPU s", "{cpu_s:.0f}"),
        ("events a CPU s", "{events_per_cpu_s:.0f}"),
        ("CPU us a turn", "{us_per_turn:.0f}"),
        ("MB, largest process", "{resident_mb:.0f}"),
        ("an event, us", "{event_us:.1f}"),
        ("a tick, ms p50 / p99", "{tick_p50_ms:.3f} / {tick_p99_ms:.2f}"),
        ("an interval's, ms p50 / p99", "{interval_p50_ms:.1f} / {interval_p99_ms:.1f}"),
        ("virtual s", "{virtual_s:.0f}"),
        ("CPUs of the busiest controller", "{controller_cpus:.2f}"),
        ("JCT mean / p95, s", "{jct_mean_s:.2f} / {jct_p95_s:.2f}"),
        ("hits", "{hits:.1%}"),
        ("turns that moved", "{moves_per_turn:.2%}"),
        ("programs that moved", "{moved_programs:.2%}"),
        ("waited at once", "{most_waiting:.0f}"),
        ("cells: programs", "{least_programs:.0f} to {most_programs:.0f}"),
        ("cells: peak demand in pools", "{least_load:.3f} to {most_load:.3f}"),
        ("cells: mean JCT, s", "{least_jct_s:.2f} to {most_jct_s:.2f}"),
    ]
    for title, cell in columns:
        print(f"{title:32}" + "".join(f"{cell.format(**row):>20}" for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", help="engines, comma-separated; default: 1,10,100,1000, simulated 1000")
    parser.add_argument("--programs", type=int, default=100, help="on each engine")
    parser.add_argument("--turn-s", type=float, default=20.0, help="a program has a turn in so many seconds")
    parser.add_argument("--waiting", type=int, default=1000, help="programs that wait, in the last column")
    parser.add_argument("--json", action="store_true")
    simulation = parser.add_argument_group("the fleet itself")
    simulation.add_argument("--simulate", action="store_true", help="run it in the simulator")
    simulation.add_argument("--cells", default="1,10,100", help="into how many it is split, comma-separated")
    simulation.add_argument("--turns", type=int, default=3, help="of each program")
    simulation.add_argument("--arrive-s", type=float, default=25.0, help="in which all programs arrive")
    simulation.add_argument("--pool-tokens", type=int, default=240_000, help="of each engine")
    simulation.add_argument("--preset", default=DEFAULT)
    simulation.add_argument("--routing", default="", help="a placement policy; default: the preset's")
    simulation.add_argument("--seed", type=int, default=1)
    simulation.add_argument("--on", default="local", help="local, ray or ray://HOST:PORT")
    simulation.add_argument("--jobs", type=int, default=0, help="cells at once; default: one a CPU")
    args = parser.parse_args()
    args.replicas = args.replicas or ("1000" if args.simulate else "1,10,100,1000")
    if args.simulate:
        rows = simulated(args)
    else:
        rows = [
            measured(int(count), args.programs, args.turn_s, args.waiting) for count in args.replicas.split(",")
        ]
    if args.json:
        print(json.dumps(rows))
        return
    if args.simulate:
        show_simulated(rows)
        return
    print(f"a turn of each program in {args.turn_s:g} s, a sample of each engine a second; ms of CPU, medians")
    print(
        f"{'engines':>8} {'programs':>9} {'sample':>8} {'turn':>9} {'newcomer':>9} {'interval':>9} {'CPUs':>7} "
        f"{'waiting':>9}"
    )
    for row in rows:
        print(
            f"{row['replicas']:>8} {row['programs']:>9} {row['sample_ms']:8.3f} {row['turn_ms']:9.3f} "
            f"{row['newcomer_ms']:9.3f} {row['interval_tick_ms']:9.2f} {row['cpus']:7.2f} "
            f"{row['turn_while_waiting_ms']:9.2f}"
        )


if __name__ == "__main__":
    main()
