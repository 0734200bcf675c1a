"""Two tenants at weights 3 and 1: their shares when both flood, and how long the small one takes beside a flood.

    python bench/tenants.py [--presets penstock,mars] [--seeds 1,2,3] [--programs 400] [--small 30]

*Shares*: both ask for more than the engine has. KV tokens x seconds that each got while turns of both were held and
programs still came, of what both got; by weight it is 75% and 25%. *Small*: the tenant of weight 1 asks for
``--load`` of a quarter of what the pool can serve, and the other one for ``--flood`` times the whole. Told is the
small one's p95 JCT over what it is alone on an engine with a quarter of the pool: without tenants (``none``), by
weights alone (``weights``) and with a floor of 25% besides (``floor``). Programs of all seeds are taken together.
*Where its time went*: the means of what its programs waited for their first turn, waited for later ones, and were
in the engine.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

import numpy as np

from controlplane.core.control import ControlRules
from controlplane.core.presets import PRESETS
from controlplane.core.types import NANOSECONDS_PER_SECOND
from controlplane.lab.compare.markdown import table
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.simulate import Run, alone, run_of, simulate
from controlplane.lab.sweep.resolve import saturation_rate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.records import TurnRecord
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.tenants import jain_of

TRACE = "synthetic:swe-bench"
SHARE = 0.25
SMALL = "t2"
WAYS = {"none": "", "weights": "", "floor": "%25"}


def experiment(preset: str, seed: int, tenants: str, programs: int, rate: float, pool_tokens: int) -> Experiment:
    """Programs of SWE-bench's statistics on one engine, whose tools have CPUs enough."""
    return Experiment(
        workload=Workload(trace=TRACE, programs=programs, tenants=tenants, cpus=256),
        hardware=Hardware(pool_tokens=pool_tokens),
        arrival=Poisson(rate),
        preset=PRESETS[preset],
        seed=seed,
    )


def saturation(pool_tokens: int) -> float:
    """Programs a second that no order could serve more of with that pool."""
    return saturation_rate(Workload(trace=TRACE, cpus=256), Hardware(pool_tokens=pool_tokens))


def shares(preset: str, options: argparse.Namespace) -> dict[str, object]:
    """Of all seeds: the weight-3 tenant's part, and Jain's index."""
    rate = 2 * saturation(options.pool_tokens)
    found = [
        simulate(experiment(preset, seed, "3:1", options.programs, rate, options.pool_tokens)).tenants
        for seed in options.seeds
    ]
    return {
        "preset": preset,
        "large_share": [results[0].kv_share for results in found],
        "jain": [jain_of(results) for results in found],
        "contended_s": [results[0].contended_s for results in found],
    }


def small_one(preset: str, options: argparse.Namespace) -> dict[str, object]:
    """The small tenant's p95 JCT in seconds, alone and in each way beside the flood; and ``went``, its means."""
    whole = saturation(options.pool_tokens)
    small, flood = options.load * SHARE * whole, options.flood * whole
    programs = round(options.small * (small + flood) / small)
    found: dict[str, list[Parts]] = {way: [] for way in ("alone", *WAYS)}
    for seed in options.seeds:
        for way, floor in WAYS.items():
            tenants = f"3@{flood:.6f}:1@{small:.6f}{floor}"
            run = run_of(experiment(preset, seed, tenants, programs, small + flood, options.pool_tokens))
            own = set(of_small(run))
            if way == "none":
                found["alone"] += parts_s(simulate(alone(run, SMALL, SHARE)), own)
                run = all_of_one(run)
            found[way] += parts_s(simulate(run), own)
    p95_s = {way: float(np.percentile([each.completion for each in of], 95)) for way, of in found.items()}
    went = {way: [fmean(column) for column in zip(*of, strict=True)] for way, of in found.items()}
    return {"preset": preset, **p95_s, "went": went}


def all_of_one(run: Run) -> Run:
    """The same programs, whose tenants nobody tells apart."""
    single = replace(run.asked, rules=ControlRules())
    return replace(run, asked=single, owners=type(run.owners)())


def of_small(run: Run) -> Sequence[str]:
    return [program.program_id for program, owner in zip(run.programs, run.whose, strict=True) if owner == SMALL]


class Parts(NamedTuple):
    """Of one program, in seconds."""

    completion: float
    first_hold: float
    later_holds: float
    engine: float


def parts_s(result: RunResult, only: set[str]) -> list[Parts]:
    """Of those programs that ended well."""
    turns: dict[str, list[TurnRecord]] = {}
    for turn in sorted(result.turns, key=lambda turn: turn.queued_ns):
        if turn.program_id in only and turn.admitted_ns is not None:
            turns.setdefault(turn.program_id, []).append(turn)
    return [
        Parts(
            *(
                ns / NANOSECONDS_PER_SECOND
                for ns in (
                    program.completion_ns,
                    turns[program.program_id][0].hold_ns,
                    sum(turn.hold_ns for turn in turns[program.program_id][1:]),
                    sum(turn.ended_ns - turn.admitted_ns for turn in turns[program.program_id]),
                )
            )
        )
        for program in result.programs
        if program.program_id in only and not program.failed
    ]


def report(found: dict[str, list[dict[str, object]]]) -> str:
    """As Markdown."""
    lines = []
    if found["shares"]:
        rows = [
            [
                row["preset"],
                " ".join(f"{share:.1%}" for share in row["large_share"]),  # type: ignore[attr-defined]
                f"{min(row['jain']):.3f}",  # type: ignore[call-overload]
            ]
            for row in found["shares"]
        ]
        lines += table(["preset", "the large one's share by seed (75% by weight)", "least Jain index"], rows)
    rows = [
        [
            row["preset"],
            f"{row['alone']:.0f}",
            *(f"{row[way]:.0f} ({row[way] / row['alone']:.2f})" for way in WAYS),  # type: ignore[operator]
        ]
        for row in found["small"]
    ]
    head = ["preset", "small one alone: p95 JCT (s)", *(f"beside a flood, {way} (over alone)" for way in WAYS)]
    lines += ["", *table(head, rows), ""]
    went = [
        [row["preset"], way, *(f"{mean_s:.0f}" for mean_s in means)]
        for row in found["small"]
        for way, means in row["went"].items()  # type: ignore[attr-defined]
    ]
    head = ["preset", "the small one", "mean JCT (s)", "held at first", "held later", "in the engine"]
    return "\n".join([*lines, *table(head, went)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="penstock,mars", help="default: %(default)s")
    parser.add_argument("--seeds", default="1,2,3", help="default: %(default)s")
    parser.add_argument("--pool-tokens", type=int, default=60_000, help="default: %(default)s")
    parser.add_argument("--programs", type=int, default=400, help="of the shares; default: %(default)s")
    parser.add_argument("--small", type=int, default=30, help="the small one's programs; default: %(default)s")
    parser.add_argument("--load", type=float, default=0.5, help="of its share; default: %(default)s")
    parser.add_argument("--flood", type=float, default=1.2, help="times the pool; default: %(default)s")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.seeds = [int(seed) for seed in options.seeds.split(",")]
    presets = options.presets.split(",")
    found = {
        "shares": [shares(preset, options) for preset in presets] if options.programs else [],
        "small": [small_one(preset, options) for preset in presets],
    }
    print(json.dumps(found, indent=1) if options.json else report(found))


if __name__ == "__main__":
    main()
