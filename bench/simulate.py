"""Simulated turns per CPU-minute, with full batching and the controller in the loop.

    python bench/simulate.py [--replicas 1,2,4,8] [--json]

Beside it, in the same run and on the same machine: the event kernel alone, running as many actions as the
simulation did, which is the least that a simulation of so many steps could cost.
"""

import argparse
import json
import os
import platform
import sys
import time

from controlplane.core.policies.presets import PRESETS
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.sim.kernel import Kernel
from controlplane.lab.sim.profile import list_profiles
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.synthetic import WORKLOADS, synthesize


def kernel_actions_per_s(actions: int = 300_000, pending: int = 64) -> float:
    """Actions a second of a kernel whose actions do nothing but schedule the next one."""
    kernel = Kernel()

    def again(gap_ns: int) -> None:
        if kernel.executed < actions:
            kernel.schedule(kernel.now_ns + gap_ns, 0, again, gap_ns)

    for i in range(pending):
        kernel.schedule(i, 0, again, 1_000 + i)
    started = time.process_time()
    kernel.run()
    return kernel.executed / (time.process_time() - started)


def measure(options: argparse.Namespace, programs: int, preset: str, replicas: int) -> dict[str, float | int | str]:
    """Simulate once and report. Every replica gets that many programs, at that rate."""
    programs *= replicas
    asked = Experiment(
        workload=Workload(trace=options.workload),
        trace=synthesize(options.workload, programs=programs, seed=options.seed),
        arrival=Poisson(options.rate * replicas),
        hardware=Hardware(profile=options.profile, pool_tokens=options.pool_tokens, replicas=replicas),
        preset=PRESETS[preset],
        seed=options.seed,
    )
    started = time.process_time()
    result = simulate(asked)
    cpu_s = time.process_time() - started
    turns = result.summary.turns_ended
    return {
        "preset": preset,
        "replicas": replicas,
        "programs": programs,
        "turns": turns,
        "cpu_s": round(cpu_s, 3),
        "turns_per_cpu_min": round(turns / cpu_s * 60),
        "us_per_turn": round(cpu_s / turns * 1e6, 1),
        "virtual_s": round(result.summary.makespan_s, 1),
        "max_queue": max(result.series.queue),
        "max_active": max(result.series.active),
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default="125,250,500,1000", help="counts to run, comma-separated")
    parser.add_argument("--replicas", default="1", help="counts of engines, each with those programs and that rate")
    parser.add_argument("--presets", default="fcfs,mars", help="of: " + ", ".join(PRESETS))
    parser.add_argument("--workload", default="swe-bench-verified", choices=list(WORKLOADS))
    parser.add_argument("--profile", default=Hardware().profile, help="of: " + ", ".join(list_profiles()))
    parser.add_argument("--pool-tokens", type=int, default=0, help="KV pool; 0: the profile's")
    parser.add_argument("--rate", type=float, default=0.2, help="programs a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    kernel_rate = kernel_actions_per_s()
    rows = [
        measure(options, int(programs), preset, int(replicas))
        for preset in options.presets.split(",")
        for replicas in options.replicas.split(",")
        for programs in options.programs.split(",")
    ]
    for row in rows:
        row["kernel_actions_per_turn_time"] = round(float(row["us_per_turn"]) * kernel_rate / 1e6)
    machine = f"python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.machine()}"
    if options.json:
        print(json.dumps({"machine": machine, "kernel_actions_per_s": round(kernel_rate), "rows": rows}))
        return 0
    print(f"{options.workload} on {options.profile}, poisson:{options.rate:g} a replica; {machine}")
    print(f"the kernel alone: {kernel_rate:,.0f} actions/s ({1e6 / kernel_rate:.2f} us each)\n")
    print(
        f"{'preset':8}{'replicas':>9}{'programs':>9}{'turns':>8}{'CPU s':>8}{'turns/CPU-min':>15}{'us/turn':>9}",
        end="",
    )
    print(f"{'virtual s':>11}{'active':>8}{'queue':>7}  in kernel actions")
    for row in rows:
        print(
            f"{row['preset']:8}{row['replicas']:9}{row['programs']:9}{row['turns']:8}{row['cpu_s']:8.2f}"
            f"{row['turns_per_cpu_min']:15,}{row['us_per_turn']:9.1f}{row['virtual_s']:11.0f}"
            f"{row['max_active']:8}{row['max_queue']:7}  {row['kernel_actions_per_turn_time']}"
        )
    print("\nbudget: >= 200,000 turns per CPU-minute; 1,000 programs x 40 turns well under a minute")
    return 0


if __name__ == "__main__":
    sys.exit(main())
