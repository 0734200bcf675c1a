"""A switchback's estimate beside the truth, in the simulator, where both arms can be run whole.

    python bench/switchback.py [--slices N] [--keys K] [--load NAME] [--json]

Of each load three kinds of run with the same arrivals: all of it under `fcfs`, all of it under the preset, and
switchbacks that differ in the slices that they draw. The truth is the figure of the two whole runs: the mean over
slices of the logarithm of slowness under the preset over that under stock.

`all`: the change of the plain mean completion of all programs. `covered`: so many switchbacks' intervals held the
truth after every block, from the first to the last. `false`: so many stopped for a loss where the truth is a gain,
or for a gain where it is a loss. `seen after`: the median of blocks until the interval left no doubt of the sign.
The loads named `same` compare `fcfs` with itself, where each stop is a false one.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log
from typing import Any

from controlplane.core.experiment import Switchback, SwitchbackRules, confidence_interval, judge
from controlplane.core.experiment.confidence import Moments
from controlplane.core.experiment.outcomes import Outcome, Outcomes
from controlplane.core.experiment.slices import Slices
from controlplane.core.model.commands import Command
from controlplane.core.model.events import Event
from controlplane.core.policies.presets import PRESETS, STOCK, Preset
from controlplane.lab.compare.markdown import table
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.sim.switched import Switched
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.synthetic import synthesize

ALPHA = 0.05
CHANGES, SPREADS = (0.05, 0.1, 0.2, 0.3), (0.05, 0.1, 0.2, 0.3)
WASHOUT_S, SLICE_S = 200.0, 800.0
_HEAD = ["load", "preset", "stock, s", "all", "truth", "bias", "half", "sd", "covered", "false", "seen after"]


@dataclass(frozen=True, slots=True)
class Load:
    """A preset beside stock, on a pool, at a rate of programs a second."""

    name: str
    preset: str
    workload: str
    pool_tokens: int
    rate: float


LOADS = (
    Load("quiet", "penstock", "swe-bench", 30_000, 0.04),
    Load("half", "penstock", "swe-bench", 30_000, 0.06),
    Load("onset", "penstock", "swe-bench", 30_000, 0.08),
    Load("full", "penstock", "swe-bench", 30_000, 0.1),
    Load("mars", "mars", "swe-bench", 30_000, 0.08),
    Load("continuum", "continuum", "swe-bench", 30_000, 0.08),
    Load("thunderagent", "thunderagent", "swe-bench", 30_000, 0.08),
    Load("same, quiet", STOCK, "swe-bench", 30_000, 0.04),
    Load("same, half", STOCK, "swe-bench", 30_000, 0.06),
    Load("same, onset", STOCK, "swe-bench", 30_000, 0.08),
)


class Whole:
    """A recorder of what slices came to while one preset was in force throughout."""

    def __init__(self, rules: SwitchbackRules) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self._heard = Outcomes(Slices(rules, ""), self.outcomes, {})

    def event(self, event: Event, now_ns: int) -> None:
        self._heard.event(event, now_ns)

    def tick(self, now_ns: int) -> None:
        """Nothing."""

    def command(self, command: Command, now_ns: int) -> None:
        """Nothing."""


def asked(load: Load, slices: int, seed: int) -> Experiment:
    """All of a load."""
    programs = round(load.rate * SLICE_S * slices)
    return Experiment(
        workload=Workload(trace=load.workload),
        trace=synthesize(load.workload, programs=programs, seed=seed),
        arrival=Poisson(load.rate),
        hardware=Hardware(pool_tokens=load.pool_tokens),
        preset=PRESETS[load.preset],
        seed=seed,
    )


def whole(experiment: Experiment, preset: Preset, rules: SwitchbackRules) -> tuple[dict[int, Outcome], float]:
    """Each slice's outcome, and the mean completion in seconds, with nothing left out."""
    recorder = Whole(rules)
    result = simulate(replace(experiment, preset=preset), recorder=recorder)
    return recorder.outcomes, result.summary.jct_mean_s or 0.0


def switched(experiment: Experiment, rules: SwitchbackRules, key: str) -> list[float]:
    """The logarithms of ratios, block by block."""
    found = Switchback.begin(replace(rules, loss_ratio=10.0), key, 0)
    found.state.first_block = found.state.next_block = 0  # nothing was before
    preset = experiment.preset
    simulate(experiment, controller=partial(Switched, experiment=found, preset_at=lambda _: preset))
    return [block.completion for block in found.state.blocks]


def truth(stock: dict[int, Outcome], preset: dict[int, Outcome], numbers: Sequence[int]) -> float:
    """The mean over slices of the logarithm of slowness under the preset, over that under stock."""
    return statistics.fmean(log(_slowness(preset[each]) / _slowness(stock[each])) for each in numbers)


def _slowness(of: Outcome) -> float:
    return of.completion_s / of.asked_s


def measure(load: Load, slices: int, keys: int, seed: int) -> dict[str, Any]:
    """One row."""
    rules, experiment = SwitchbackRules(slice_s=SLICE_S, washout_s=WASHOUT_S), asked(load, slices, seed)
    stock, stock_jct_s = whole(experiment, PRESETS[STOCK], rules)
    preset, preset_jct_s = whole(experiment, experiment.preset, rules)
    runs = [switched(experiment, rules, f"{load.name} {key}") for key in range(keys)]
    blocks = min(map(len, runs))
    true = truth(stock, preset, range(rules.stock_every * blocks))
    every = [[confidence_interval(run[: end + 1], ALPHA) for end in range(len(run))] for run in runs]
    wrong = [_false_stop(run, true) for run in runs]
    seen = [_seen_after(each) for each in every]
    return {
        "load": load.name,
        "preset": load.preset,
        "stock_jct_s": stock_jct_s,
        "jct_ratio": preset_jct_s / stock_jct_s - 1,
        "truth": exp(true) - 1,
        "bias": statistics.fmean(each[-1].mean for each in every) - true,
        "sd": statistics.fmean(statistics.stdev(run) for run in runs),
        "blocks": blocks,
        "covered": sum(all(one.low <= true <= one.high for one in each) for each in every),
        "half": statistics.fmean((each[-1].high - each[-1].low) / 2 for each in every),
        "false": sum(wrong),
        "seen_after": statistics.median(seen),
        "keys": keys,
    }


def _false_stop(run: Sequence[float], true: float) -> bool:
    """Whether the bounds at no change would have ended it, and for what is not so."""
    rules = SwitchbackRules(gain_ratio=0.0)
    for end in range(1, len(run) + 1):
        if why := judge(run[:end], rules)[0]:
            return true >= 0 if why == "gain" else true <= 0
    return False


def _seen_after(intervals: Sequence[Any]) -> float:
    return next((each.count for each in intervals if each.low > 0 or each.high < 0), float("inf"))


def power(sd: float) -> list[str]:
    """How many blocks that differ by so much it takes until each change is seen, where chance is neither way."""

    def half(blocks: int) -> float:
        return Moments(blocks, 0.0, (blocks - 1) * sd * sd).interval(ALPHA).high

    seen = [next(n for n in range(2, 100_000) if half(n) < -log(1 - change)) for change in CHANGES]
    return [f"{sd:g}", *map(str, seen)]


def rows(found: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    for row in found:
        yield [
            row["load"],
            row["preset"],
            f"{row['stock_jct_s']:.0f}",
            f"{row['jct_ratio']:+.1%}",
            f"{row['truth']:+.1%}",
            f"{row['bias']:+.3f}",
            f"{row['half']:.3f}",
            f"{row['sd']:.3f}",
            f"{row['covered']}/{row['keys']}",
            f"{row['false']}/{row['keys']}",
            f"{row['seen_after']:g}",
        ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--slices", type=int, default=30)
    parser.add_argument("--keys", type=int, default=3, help="switchbacks of each load")
    parser.add_argument("--load", action="append", choices=[load.name for load in LOADS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--power", action="store_true", help="only how many blocks it takes to see a change")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.power:
        print("\n".join(table(["sd", *(f"{change:.0%}" for change in CHANGES)], map(power, SPREADS))))
        return
    found = []
    for load in LOADS:
        if not options.load or load.name in options.load:
            found.append(measure(load, options.slices, options.keys, options.seed))
            print(load.name, file=sys.stderr)
    if options.json:
        print(json.dumps(found))
        return
    print("\n".join(table(_HEAD, rows(found))))


if __name__ == "__main__":
    main()
