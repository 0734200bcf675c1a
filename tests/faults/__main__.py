"""Run seeds: ``python -m tests.faults --seeds 0:100``. Exits with 1 when a promise was broken."""

# ruff: noqa: T201 - what a command prints

import argparse
import sys
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

from .faults import KINDS
from .flaws import FLAWS
from .shrink import shrunk
from .world import Plan, Result, plan_of, simulate

_MOST_LINES = 30  # of a log


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed, with its log")
    parser.add_argument("--seeds", default="0:20", help="FIRST:END, or FIRST: until --cpu-s (default: %(default)s)")
    parser.add_argument("--cpu-s", type=float, default=0.0, help="stop after so many seconds of CPU")
    parser.add_argument("--keep", help="of one seed's faults only those with these numbers: 0,3,4")
    parser.add_argument("--kinds", default="", help="only faults of these kinds, separated by commas")
    parser.add_argument("--programs", type=int, help="of one seed's programs so many")
    parser.add_argument("--flaw", choices=sorted(FLAWS), help="with a flaw that was mended put back, and its kinds")
    return parser.parse_args()


def _whole(arguments: argparse.Namespace, seed: int) -> Plan:
    """What the seed stands for, before anything is left out of it."""
    kinds = [kind for kind in arguments.kinds.split(",") if kind]
    if arguments.flaw and not kinds:
        return FLAWS[arguments.flaw].plan(seed)
    return plan_of(seed, kinds=kinds)


def _plan(arguments: argparse.Namespace, seed: int) -> Plan:
    plan = _whole(arguments, seed)
    if arguments.keep is not None:
        kept = [int(number) for number in arguments.keep.split(",") if number]
        plan = replace(plan, faults=tuple(plan.faults[number] for number in kept))
    return plan if arguments.programs is None else replace(plan, programs=arguments.programs)


def _tell(failed: Result, arguments: argparse.Namespace) -> None:
    """What was broken, the shortest history that shows it, and the command that does."""
    seed = failed.plan.seed
    whole = _whole(arguments, seed).faults
    print(f"\nseed {seed}: {failed.violations[0]}")
    short = shrunk(failed, simulate)
    print("shrunk to", short.plan.config, f"with {short.plan.servers} servers and {short.plan.programs} programs:")
    for fault in short.plan.faults:
        print("   ", fault)
    print("then", short.violations[0])
    print("\n".join(short.log[-_MOST_LINES:]))
    keep = ",".join(str(whole.index(fault)) for fault in short.plan.faults)
    asked = f" --flaw {arguments.flaw!r}" if arguments.flaw else ""
    asked += f" --kinds {arguments.kinds!r}" if arguments.kinds else ""
    print(f"python -m tests.faults --seed {seed} --keep '{keep}' --programs {short.plan.programs}{asked}")


def main() -> int:
    arguments = _arguments()
    first, _, end = arguments.seeds.partition(":")
    seeds = range(int(first), int(end) if end else sys.maxsize)
    if arguments.seed is not None:
        seeds = range(arguments.seed, arguments.seed + 1)
    began_s, ran, steps, free_s = time.process_time(), 0, 0, 0.0
    counts: Counter[str] = Counter()
    with FLAWS[arguments.flaw].put_back() if arguments.flaw else nullcontext():
        for seed in seeds:
            result = simulate(_plan(arguments, seed))
            ran, steps, counts = ran + 1, steps + result.steps, counts + result.counts
            free_s = max(free_s, result.longest_free_s)
            if arguments.seed is not None:
                print("\n".join(result.log))
            if result.violations:
                _tell(result, arguments)
                return 1
            if 0 < arguments.cpu_s <= time.process_time() - began_s:
                break
    cpu_s = time.process_time() - began_s
    print(f"{ran} seeds, {steps:,} steps, {steps / cpu_s * 60:,.0f} steps a minute of CPU; no promise was broken")
    print(f"the longest wait beside a free slot, with faults: {free_s:.1f} s")
    for kind in (*KINDS, "client leaves", "NATS is revived"):
        print(f"{counts[kind]:6}  {kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
