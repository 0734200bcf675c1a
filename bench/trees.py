"""Programs that send sub-agents and wait for all of them: what it brings to know that, simulated.

    python bench/trees.py [--seeds 1,2,3,4,5] [--programs 20] [--cells "NAME;..."] [--arms NAME,...] [--json]

Each seed draws other programs of ``synthetic:agentx-like`` and other arrivals. Of every cell it prints the mean JCT
of roots of three arms on the same draws: *unknown* (agents report runs and tools, but nobody says whose sub-agent
one is: each is a program that queues), *ridden* (children ride their root's slot at once, and a parent lends its
room while it waits: ``[control.trees]`` all off) and *trees* (its defaults). Behind it ratios with 95% intervals
over the seeds, where below 1 is better; a cell whose interval lies above 1 is named as lost.

Further arms: *keep* and *gangs*, each with that part of ``[control.trees]`` alone, and *clairvoyant*, which knows
all that every program will do, its sub-agents included, and says how much is left to gain. Each of its programs
queues: it decides itself who rides whose slot.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from controlplane.core.control import ControlRules
from controlplane.core.presets import DEFAULT
from controlplane.core.trees import TreeRules
from controlplane.lab.compare.markdown import table
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.sim.laboratory import simulated_preset
from controlplane.lab.simulate import simulate
from controlplane.lab.sweep.resolve import resolved
from controlplane.lab.workload.arrivals import Arrival
from controlplane.lab.workload.interval import ratio_interval
from controlplane.lab.workload.synthetic import synthesize
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trees import AGENTX_LIKE

WORKLOAD = Workload(trace=f"synthetic:{AGENTX_LIKE}", programs=100)
OFF = TreeRules(gang_s=0.0, keep=False, prefetch_s=0.0)
TREES, CLAIRVOYANT = "trees", "clairvoyant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What is told and what is decided by."""

    telemetry: Telemetry = Telemetry.FULL
    rules: TreeRules = OFF
    preset: str = DEFAULT


ARMS: Mapping[str, Arm] = {
    "unknown": Arm(telemetry=Telemetry.RUNS),
    "ridden": Arm(),
    "keep": Arm(rules=replace(TreeRules(), gang_s=0.0)),
    "gangs": Arm(rules=replace(TreeRules(), keep=False)),
    TREES: Arm(rules=TreeRules()),
    CLAIRVOYANT: Arm(telemetry=Telemetry.RUNS, preset=CLAIRVOYANT),
}
USUAL = ("unknown", "ridden", TREES)
LONGEST = 1_000_000  # tokens of context: the model's own limit would cut these sessions off
B200 = Hardware(profile="b200", max_context_tokens=LONGEST)
SMALL = Hardware(profile="b200-llama31-70b", max_context_tokens=LONGEST, pool_tokens=1_000_000)
HOST = Hardware(profile="b200", max_context_tokens=LONGEST, tiers=("dram:3000000:25",))
FOUR = Hardware(profile="b200", max_context_tokens=LONGEST, replicas=4)
CELLS: Mapping[str, tuple[Hardware, float]] = {
    "8B, load 0.5": (B200, 0.5),
    "8B, load 0.8": (B200, 0.8),
    "8B, load 1.2": (B200, 1.2),
    "8B, load 2": (B200, 2.0),
    "8B, load 6": (B200, 6.0),
    "8B and host memory, load 0.8": (HOST, 0.8),
    "8B and host memory, load 1.2": (HOST, 1.2),
    "70B, load 0.5": (SMALL, 0.5),
    "70B, load 0.8": (SMALL, 0.8),
    "four engines of 8B, load 0.8": (FOUR, 0.8),
}


def simulated(hardware: Hardware, arrival: Arrival, seed: int, programs: int, arm: str) -> float:
    """The mean JCT of roots, in seconds."""
    chosen = ARMS[arm]
    asked = Experiment(
        workload=Workload(trace=WORKLOAD.trace, telemetry=chosen.telemetry),
        trace=synthesize(AGENTX_LIKE, programs=programs, seed=seed),
        hardware=hardware,
        arrival=arrival,
        preset=simulated_preset(chosen.preset),
        rules=ControlRules(trees=chosen.rules),
        seed=seed,
    )
    return simulate(asked).summary.jct_mean_s


def study(options: argparse.Namespace) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name in options.cells or CELLS:
        hardware, load = CELLS[name]
        arrival = resolved(f"load:{load}", WORKLOAD, hardware)
        programs = options.programs * hardware.replicas
        jct: dict[str, list[float]] = {arm: [] for arm in options.arms}
        for seed in options.seeds:
            print(f"  {name}, seed {seed}", file=sys.stderr)
            for arm, found in jct.items():
                found.append(simulated(hardware, arrival, seed, programs, arm))
        rows.append({"cell": name, "arrival": str(arrival), "jct_mean_s": jct})
    return rows


def printed(rows: list[dict[str, object]]) -> str:
    """As Markdown."""
    title, lines, lost = list[str](), [], []
    for row in rows:
        jct = row["jct_mean_s"]
        assert isinstance(jct, dict)
        ours = TREES if TREES in jct else list(jct)[-1]
        others = [arm for arm in jct if arm != ours]
        against = {arm: ratio_interval(list(zip(jct[ours], jct[arm], strict=True))) for arm in others}
        lost += [
            f"{row['cell']} (against {arm})"
            for arm, ratio in against.items()
            if ratio and ratio.low > 1 and arm != CLAIRVOYANT
        ]
        title = ["cell", *(f"{arm}, s" for arm in jct), *(f"{ours} / {arm}" for arm in others)]
        lines.append([str(row["cell"]), *(f"{fmean(jct[arm]):.0f}" for arm in jct), *map(str, against.values())])
    return "\n".join([*table(title, lines), "", f"lost: {', '.join(lost) or 'none'}"])


def arms(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := [arm for arm in chosen if arm not in ARMS]:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(ARMS)}, got {', '.join(unknown)}")
    return chosen


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3, 4, 5]
    )
    parser.add_argument("--programs", type=int, default=20, help="roots of a run, for each engine")
    parser.add_argument(
        "--cells", type=lambda text: text.split(";"), default=[], help="separated by ;. Default: all"
    )
    parser.add_argument("--arms", type=arms, default=USUAL, help=f"default: {','.join(USUAL)}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    rows = study(options)
    print(json.dumps(rows) if options.json else printed(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
