"""Routing over two engines, beside AgentServeSim's Table 9.

    python bench/paper_routing.py [--seeds 1,2,3,4,5] [--json]

The same question with a workload of the same statistics (its Table 4: 41.9 +- 14.9 turns a program, 356 k +-
185 k tokens, tools of 1161 +- 4125 ms), 50 programs, Poisson arrivals, two H100 with Llama-3.1-8B, first come first
served. Each figure is the mean over seeds of one run each; a seed's programs and arrivals are the same for every
policy. Our programs are drawn and our H100 is a roofline, so absolute times differ: what is compared is each policy
over session routing, ours beside theirs.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence

from controlplane.core.presets import PRESETS
from controlplane.sim.profile import load_profile
from controlplane.sim.simulate import EngineSpec, SimSpec, simulate
from controlplane.workload.arrivals import Poisson
from controlplane.workload.synthetic import synthesize

RATES = (0.04, 0.06, 0.08, 0.1)
OTHERS = ("round_robin", "least_loaded")
SESSION = "session"
# AgentServeSim, Table 9: mean JCT (s), p95 JCT (s), hit rate (%) at each rate.
Figures = tuple[float, float, float]
THEIRS: dict[str, tuple[Figures, ...]] = {
    "round_robin": ((88.0, 170.6, 92.65), (88.9, 173.6, 92.71), (89.1, 175.5, 92.68), (89.1, 179.0, 92.67)),
    "least_loaded": ((89.1, 170.8, 92.98), (89.5, 173.8, 92.86), (89.7, 175.4, 92.83), (91.5, 177.5, 92.89)),
    "session": ((88.7, 169.2, 96.26), (89.2, 170.6, 96.26), (89.5, 172.8, 96.26), (89.8, 174.0, 96.26)),
}


def run(routing: str, rate: float, seed: int, programs: int) -> Figures:
    """One run's mean JCT, p95 JCT and hit rate."""
    spec = SimSpec(
        trace=synthesize("swe-bench-verified", programs=programs, seed=seed),
        arrival=Poisson(rate),
        engine=EngineSpec(profile=load_profile("h100"), replicas=2),
        preset=PRESETS["fcfs"],
        seed=seed,
        routing=routing,
    )
    summary = simulate(spec).summary
    return summary.jct_mean_s, summary.jct_p95_s, 100 * summary.cache_hit_ratio


def mean_of(rows: Sequence[Figures]) -> Figures:
    mean, p95, hits = (statistics.fmean(column) for column in zip(*rows, strict=True))
    return mean, p95, hits


def measure(seeds: Sequence[int], programs: int) -> dict[str, tuple[Figures, ...]]:
    return {
        routing: tuple(mean_of([run(routing, rate, seed, programs) for seed in seeds]) for rate in RATES)
        for routing in (*OTHERS, SESSION)
    }


def show(ours: dict[str, tuple[Figures, ...]]) -> None:
    print(f"{'':14}{'JPS':>5}   {'mean JCT (s)':^15} {'p95 JCT (s)':^15} {'hit rate (%)':^15}   over session:")
    heads = " ".join(f"{'ours':>7}{'theirs':>8}" for _ in range(3))
    print(f"{'':22}{heads}   {'mean':^14} {'p95':^14} {'hit points':^14}")
    for routing, rows in ours.items():
        for index, rate in enumerate(RATES):
            us, them = rows[index], THEIRS[routing][index]
            line = " ".join(f"{a:7.2f}{b:8.2f}" for a, b in zip(us, them, strict=True))
            ratios = ""
            if routing != SESSION:
                base, their_base = ours[SESSION][index], THEIRS[SESSION][index]
                pairs = [(us[k] / base[k], them[k] / their_base[k]) for k in (0, 1)]
                ratios = " ".join(f"{a:6.3f} {b:6.3f} " for a, b in pairs)
                ratios += f" {us[2] - base[2]:+6.2f} {them[2] - their_base[2]:+6.2f}"
            print(f"{routing if not index else '':14}{rate:5.2f}   {line}   {ratios}".rstrip())


def compare(ours: dict[str, tuple[Figures, ...]]) -> dict[str, dict[str, list[float]]]:
    """Smallest and largest loss against session routing over policies and rates: hit points, and seconds of p95."""

    def ends(rows: dict[str, tuple[Figures, ...]], column: int, sign: int) -> list[float]:
        found = [
            sign * (rows[routing][index][column] - rows[SESSION][index][column])
            for routing in OTHERS
            for index in range(len(RATES))
        ]
        return [round(min(found), 2), round(max(found), 2)]

    return {
        "hit points lost": {"ours": ends(ours, 2, -1), "theirs": ends(THEIRS, 2, -1)},
        "seconds of p95 JCT added": {"ours": ends(ours, 1, 1), "theirs": ends(THEIRS, 1, 1)},
        "seconds of mean JCT added": {"ours": ends(ours, 0, 1), "theirs": ends(THEIRS, 0, 1)},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3,4,5", help="of programs and arrivals, comma-separated")
    parser.add_argument("--programs", type=int, default=50, help="a run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    ours = measure(seeds, options.programs)
    against = compare(ours)
    if options.json:
        print(json.dumps({"seeds": seeds, "rates": RATES, "ours": ours, "theirs": THEIRS, "against": against}))
        return 0
    print(f"two H100, {options.programs} programs a run, seeds {options.seeds}\n")
    show(ours)
    print("\nround-robin and least-loaded against session, smallest to largest:")
    for name, ends in against.items():
        told = "; ".join(f"{who} {low:+.2f} to {high:+.2f}" for who, (low, high) in ends.items())
        print(f"  {name}: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
