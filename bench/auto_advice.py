"""Automatic advice on a simulated node: from a mistuned start, and on a load that changes; deterministic.

    .venv/bin/python bench/auto_advice.py [--programs N] [--rate R] [--seed N] [--start W] [--scenario NAME]...
                                          [--json]

A node under ``fcfs`` with a fixed window, which advice may move within bounds; its parts are the daemon's, in
virtual time. Beside each run stand the same programs with the window left as it began, and with the best one of
those tried; the second half of the programs counts by itself, since advice needs time to act.

``mistuned``: the window begins far too narrow. ``tuned``: where it should be. ``at_the_step``: as mistuned, and
programs arrive half as fast again from the moment of the first step on. ``misled``: it begins where it should
be, and each prediction is turned into its opposite, so that every step that is tried is for the worse.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed

from support.tuned_node import TunedNode

from controlplane.core.presets import PRESETS
from controlplane.core.tuning import Answer
from controlplane.lab.compare.markdown import table
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.workload.arrivals import Recorded, parse_arrival, times_ns
from controlplane.lab.workload.run import RunResult
from controlplane.shell.logs import configure

KEY = "admission.window"
SCENARIOS = ("mistuned", "tuned", "at_the_step", "misled")
_FASTER = 1.5
BOUNDS = (4, 24)
_FIXED = (6, 8, 12, 16, 24)


def configuration(window: int, *, auto: bool, stretch_s: float, cooldown_s: float) -> str:
    """A daemon's file."""
    return (
        f'preset = "fcfs"\n[admission]\nwindow = {window}\n'
        f'[advise]\nauto = {str(auto).lower()}\nbounds = ["{KEY}={BOUNDS[0]}..{BOUNDS[1]}"]\n'
        f"step_ratio = 0.2\nstretch_s = {stretch_s}\ncooldown_s = {cooldown_s}\n"
    )


def experiment(programs: int, rate: float, *, seed: int = 1, faster_from_s: float = inf) -> Experiment:
    """SWE-bench's kind of programs on a pool that holds a dozen of them."""
    arrival: Any = parse_arrival(f"poisson:{rate}")
    if faster_from_s < inf:
        from_ns = round(faster_from_s * 1e9)
        arrival = Recorded(
            tuple(
                at_ns if at_ns < from_ns else from_ns + round((at_ns - from_ns) / _FASTER)
                for at_ns in times_ns(arrival, programs, seed)
            )
        )
    return Experiment(
        workload=Workload(trace="synthetic:swe-bench", programs=programs),
        arrival=arrival,
        preset=PRESETS["fcfs"],  # whose window is the node's configuration's
        hardware=Hardware(pool_tokens=60_000),
        seed=seed,
    )


def run(
    given: argparse.Namespace, window: int, *, auto: bool, faster_from_s: float = inf, misled: bool = False
) -> tuple[TunedNode, RunResult]:
    """One run of all programs."""
    with tempfile.TemporaryDirectory() as folder:
        text = configuration(window, auto=auto, stretch_s=given.stretch_s, cooldown_s=given.cooldown_s)
        believes = opposite if misled else unchanged
        node = TunedNode(Path(folder), text, repeat=given.repeat, believes=believes)
        asked = experiment(given.programs, given.rate, seed=given.seed, faster_from_s=faster_from_s)
        return node, node.run(asked)


def unchanged(answer: Answer) -> Answer:
    """As the laboratory has it."""
    return answer


def opposite(answer: Answer) -> Answer:
    """What is for the worse is told to be for the better, and by as much."""
    return replace(
        answer,
        forecasts=tuple(
            replace(each, change=-abs(each.change), is_advised=each.change > 0) for each in answer.forecasts
        ),
    )


def mean_jct_s(found: RunResult, *, last: float) -> float:
    """Of the programs of the last part, in the order of their arrivals."""
    programs = sorted(found.programs, key=lambda each: each.arrived_ns)
    chosen = programs[round(len(programs) * (1 - last)) :]
    return fmean(each.completion_ns for each in chosen) / 1e9


def scenario(given: argparse.Namespace, name: str) -> dict[str, Any]:
    """What came of one."""
    start, misled = given.start if name in ("mistuned", "at_the_step") else given.tuned, name == "misled"
    faster_from_s = inf
    if name == "at_the_step":
        first, _ = run(given, start, auto=True)
        faster_from_s = first.changes[0].at_ns / 1e9
    node, tuned = run(given, start, auto=True, faster_from_s=faster_from_s, misled=misled)
    fixed = {
        window: run(given, window, auto=False, faster_from_s=faster_from_s)[1]
        for window in sorted({*_FIXED, start})
    }
    best = min(fixed, key=lambda window: mean_jct_s(fixed[window], last=1))
    ratios = {}
    for what, window in (("left", start), ("best", best)):
        for last, when in ((1.0, ""), (0.5, "_later")):
            other_s = mean_jct_s(fixed[window], last=last)
            ratios[f"over_{what}{when}"] = mean_jct_s(tuned, last=last) / other_s
    return {
        "scenario": name,
        "start": start,
        "ends_at": node.reloader.config.policies.admission.window,
        "jct_s": mean_jct_s(tuned, last=1),
        "best_window": best,
        **ratios,
        "fixed_jct_s": {window: mean_jct_s(found, last=1) for window, found in fixed.items()},
        "asked": node.asked,
        "changes": [
            (each.at_ns / 1e9, each.outcome, each.before, each.after, each.reason) for each in node.changes
        ],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--programs", type=int, default=400)
    parser.add_argument("--rate", type=float, default=0.2, help="programs/s")
    parser.add_argument("--seed", type=int, default=1, help="of the programs and their arrivals")
    parser.add_argument("--start", type=int, default=6, help="the window of the mistuned start")
    parser.add_argument("--tuned", type=int, default=12, help="the window of the tuned one")
    parser.add_argument("--stretch-s", type=float, default=240.0)
    parser.add_argument("--cooldown-s", type=float, default=400.0)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--scenario", action="append", choices=SCENARIOS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    configure("error")
    found = [scenario(given, name) for name in given.scenario or SCENARIOS]
    if given.json:
        print(json.dumps(found, indent=2))
        return
    head = ["scenario", "window from", "to", "mean JCT", "over left", "later", "over the best", "later", "steps"]
    rows = [
        [
            each["scenario"],
            str(each["start"]),
            str(each["ends_at"]),
            f"{each['jct_s']:.1f}s",
            f"{each['over_left']:.2f}",
            f"{each['over_left_later']:.2f}",
            f"{each['over_best']:.2f} (window {each['best_window']})",
            f"{each['over_best_later']:.2f}",
            "; ".join(f"{after:g} {outcome} at {at_s:.0f}s" for at_s, outcome, _, after, _ in each["changes"]),
        ]
        for each in found
    ]
    print("\n".join(table(head, rows)))


if __name__ == "__main__":
    main()
