"""A switchback's estimate beside the truth, in the simulator, where both arms can be run whole.

    python bench/switchback.py [--slices N] [--seeds S] [--keys K] [--load NAME] [--json]
    python bench/switchback.py --power | --day

Of each load and seed three kinds of run with the same arrivals: all of it under `fcfs`, all of it under the
preset, and switchbacks that differ in the slices that they draw. The truth is the figure of the whole runs: the
mean over slices and seeds of the logarithm of slowness under the preset over that under stock.

`all`: the change of the plain mean completion of all programs. `carried`: what slices leave to each other changes
in the figure: that of a switchback less that of one put together of the whole runs' slices, block by block.
`covered`: so many switchbacks' intervals held the truth after every block, from the first to the last. `false`:
so many stopped for a loss where the truth is a gain, or for a gain where it is a loss. `apart` and `false apart`:
the same of 100 that are put together of whole runs; `A/A`: the share of 100 of `fcfs` with itself that stopped at
all. `censored`: the share of programs that took longer than the washout, under stock and under the preset.
`cost`: what a switchback's programs took over what they take with the preset all the time. `10% after`: programs
until a change of 10% is seen, by how much blocks differ (`sd`).
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import exp, log, sqrt
from typing import Any

from controlplane.core.experiment import Block, Interval, Switchback, SwitchbackRules, confidence_interval, judge
from controlplane.core.experiment.confidence import Moments
from controlplane.core.experiment.outcomes import Outcome, Outcomes
from controlplane.core.experiment.slices import Slices
from controlplane.core.experiment.switchback import ALPHA, compare
from controlplane.core.model.commands import Command
from controlplane.core.model.events import Event
from controlplane.core.model.types import FEWEST_TO_JUDGE
from controlplane.core.policies.admission.fixed import Fixed
from controlplane.core.policies.presets import PRESETS, STOCK, Preset
from controlplane.lab.compare.markdown import table
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.sim.switched import Switched
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import parse_arrival
from controlplane.lab.workload.named import Wanted, named_workload
from controlplane.lab.workload.telemetry import Telemetry

CHANGES, SPREADS = (0.05, 0.1, 0.2, 0.3), (0.1, 0.2, 0.3)
_FREE_KEYS = 100  # of switchbacks that cost no run
_HEAD = ["load", "preset", "stock, s", "all", "truth", "carried", "half", "sd", "covered", "false"]
_HEAD += ["apart", "false apart", "A/A", "censored", "cost", "10% after"]


@dataclass(frozen=True, slots=True)
class Load:
    """A preset beside stock. ``rate``: programs a second; ``closed``: so many at once in place of it."""

    name: str
    rate: float
    preset: str = "penstock"
    workload: str = "synthetic:swe-bench"
    turns: int = 6  # of each program, the first ones
    pool_tokens: int = 12_000
    closed: int = 0
    bursts: int = 1
    scale_tools: float = 1.0
    scale_tokens: float = 1.0
    telemetry: Telemetry = Telemetry.FULL
    longer: int = 1  # times 200 s: its slices; a quarter of that: the washout

    @property
    def arrival(self) -> str:
        return f"closed:{self.closed}" if self.closed else f"burst:{self.rate}:{self.bursts}"

    @property
    def rules(self) -> SwitchbackRules:
        return SwitchbackRules(slice_s=200.0 * self.longer, washout_s=50.0 * self.longer)


LOADS = (
    Load("below saturation", 0.1),
    Load("knee", 0.15),
    Load("knee, nothing told", 0.15, telemetry=Telemetry.NONE),
    Load("the same, long slices", 0.15, telemetry=Telemetry.NONE, longer=6),
    Load("knee, mars", 0.15, preset="mars"),
    Load("saturated", 0.18),
    Load("bursts of 4", 0.12, bursts=4),
    Load("closed", 0.15, closed=5),
    Load("long tools", 0.12, scale_tools=4.0),
    Load("short programs", 0.35, turns=3),
    Load("a mix", 0.12, workload="mix:synthetic:swe-bench*2+synthetic:bfcl-v4", scale_tokens=0.6),
)
_DAY = Load("a day", 0.05, turns=3, longer=3)


class Whole:
    """A recorder of what slices came to while one preset was in force throughout."""

    def __init__(self, rules: SwitchbackRules) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self._heard = Outcomes(Slices(rules, ""), self.outcomes, {})
        self._at, self._number = Slices(rules, "").at, 0

    def event(self, event: Event, now_ns: int) -> None:
        if (number := self._at(now_ns)) != self._number:
            self._number = number
            self._heard.settle(number - 1)  # as a switchback does, a slice later
        self._heard.event(event, now_ns)

    def judged(self) -> dict[int, Outcome]:
        """The slices in which enough came, once all is over."""
        self._heard.settle(sys.maxsize)
        few = FEWEST_TO_JUDGE
        return {number: each for number, each in self.outcomes.items() if each.programs >= few and each.asked_s}

    def tick(self, now_ns: int) -> None:
        """Nothing."""

    def command(self, command: Command, now_ns: int) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One simulated run: its slices or its blocks, and the mean completion of all programs, in seconds."""

    jct_s: float
    outcomes: dict[int, Outcome]
    changes: dict[int, Block] = field(default_factory=dict)


def asked(load: Load, slices: int, seed: int) -> Experiment:
    """All of a load."""
    wanted = Wanted(programs=round(load.rate * load.rules.slice_s * slices), seed=seed)
    trace = named_workload(load.workload, wanted)
    return Experiment(
        workload=Workload(
            trace=load.workload,
            telemetry=load.telemetry,
            scale_tools=load.scale_tools,
            scale_tokens=load.scale_tokens,
        ),
        trace=replace(
            trace, programs=tuple(replace(each, turns=each.turns[: load.turns]) for each in trace.programs)
        ),
        arrival=parse_arrival(load.arrival),
        hardware=Hardware(pool_tokens=load.pool_tokens),
        preset=PRESETS[load.preset],
        seed=seed,
    )


def whole(experiment: Experiment, preset: Preset, rules: SwitchbackRules) -> Ran:
    """One preset throughout."""
    recorder = Whole(rules)
    result = simulate(replace(experiment, preset=preset), recorder=recorder)
    return Ran(result.summary.jct_mean_s or 0.0, recorder.judged())


def switched(experiment: Experiment, key: str, rules: SwitchbackRules) -> Ran:
    """A switchback that measures to the end, whatever it finds."""
    found = begun(replace(rules, loss_ratio=10.0), key)
    preset = experiment.preset
    result = simulate(experiment, controller=partial(Switched, experiment=found, preset_at=lambda _: preset))
    return Ran(
        result.summary.jct_mean_s or 0.0,
        {},
        {found.slices.block(found.slices.at(each.began_ns)): each for each in found.state.blocks},
    )


def begun(rules: SwitchbackRules, key: str) -> Switchback:
    """One that has nothing before its first block."""
    found = Switchback.begin(rules, key, 0)
    found.state.first_block = found.state.next_block = 0
    return found


def per_slice(stock: Ran, preset: Ran, slices: int) -> list[float]:
    """The truth slice by slice: the logarithm of slowness under the preset, over that under stock."""
    return [
        log(_slowness(preset.outcomes[each]) / _slowness(stock.outcomes[each]))
        for each in range(slices)
        if each in stock.outcomes and each in preset.outcomes
    ]


def _slowness(of: Outcome) -> float:
    return of.completion_s / of.asked_s


def _censored(runs: Sequence[Ran]) -> float:
    outcomes = [outcome for run in runs for outcome in run.outcomes.values()]
    return sum(each.censored for each in outcomes) / sum(each.programs for each in outcomes)


def apart(stock: Ran, preset: Ran, drawn: Slices, slices: int) -> dict[int, Block]:
    """A switchback whose slices know nothing of each other: put together of whole runs."""
    every, found = drawn.rules.stock_every, {}
    for block in range(slices // every):
        numbers = range(block * every, (block + 1) * every)
        if not all(each in stock.outcomes and each in preset.outcomes for each in numbers):
            continue
        (one,) = (stock.outcomes[each] for each in numbers if drawn.is_stock(each))
        others = [preset.outcomes[each] for each in numbers if not drawn.is_stock(each)]
        if (compared := compare(one, others, began_ns=0)) is not None:
            found[block] = compared
    return found


def measure(load: Load, slices: int, seeds: int, keys: int, told: Callable[[str], None]) -> dict[str, Any]:
    """One row."""
    stocks, presets, runs, true_logs = list[Ran](), list[Ran](), list[Ran](), list[float]()
    carried, costs, same, drawn = list[float](), list[float](), list[list[Block]](), list[list[Block]]()
    rules = load.rules
    for seed in range(1, seeds + 1):
        experiment = asked(load, slices, seed)
        stock, preset = (whole(experiment, each, rules) for each in (PRESETS[STOCK], experiment.preset))
        stocks.append(stock)
        presets.append(preset)
        true_logs += per_slice(stock, preset, slices)
        for key in (f"{load.name} {seed} {key}" for key in range(keys)):
            run, beside = switched(experiment, key, rules), apart(stock, preset, Slices(rules, key), slices)
            carried += [
                run.changes[each].completion - beside[each].completion
                for each in run.changes.keys() & beside.keys()
            ]
            costs.append(run.jct_s / preset.jct_s - 1)
            runs.append(run)
        for free in (Slices(rules, str(key)) for key in range(_FREE_KEYS)):
            same.append([*apart(stock, stock, free, slices).values()])
            drawn.append([*apart(stock, preset, free, slices).values()])
        told(f"{load.name}, seed {seed}")
    true, changes = statistics.fmean(true_logs), [[*run.changes.values()] for run in runs]
    sd = statistics.fmean(statistics.stdev(each.completion for each in run) for run in changes)
    return {
        "load": load.name,
        "preset": load.preset,
        "stock_jct_s": statistics.fmean(run.jct_s for run in stocks),
        "jct_ratio": sum(run.jct_s for run in presets) / sum(run.jct_s for run in stocks) - 1,
        "truth": exp(true) - 1,
        "carried": (statistics.fmean(carried), 2 * statistics.stdev(carried) / sqrt(len(carried))),
        "half": statistics.fmean(_half(run) for run in changes),
        "sd": sd,
        "covered": sum(_covers(run, true) for run in changes),
        "false": sum(_false_stop(run, true) for run in changes),
        "runs": len(runs),
        "apart_covered_ratio": statistics.fmean(_covers(run, true) for run in drawn),
        "apart_false_ratio": statistics.fmean(_false_stop(run, true) for run in drawn),
        "same_stopped_ratio": statistics.fmean(bool(_stops(run)) for run in same),
        "censored_ratio": (_censored(stocks), _censored(presets)),
        "cost_ratio": statistics.fmean(costs),
        "seen_programs": round(blocks_until(sd, 0.1) * rules.stock_every * rules.slice_s * load.rate),
        "changes": [[each.completion for each in run] for run in changes],
    }


def _covers(run: Sequence[Block], true: float) -> bool:
    """Whether each interval on the way holds it."""
    intervals = (_interval(run[: end + 1]) for end in range(len(run)))
    return all(each.low <= true <= each.high for each in intervals)


def _interval(run: Sequence[Block]) -> Interval:
    return confidence_interval([each.completion for each in run], ALPHA)


def _half(run: Sequence[Block]) -> float:
    found = _interval(run)
    return (found.high - found.low) / 2


def _stops(run: Sequence[Block]) -> str:
    """What bounds at no change would have ended it for."""
    rules = SwitchbackRules(slice_s=200.0, washout_s=50.0, gain_ratio=0.0)
    return next((why for end in range(1, len(run) + 1) if (why := judge(run[:end], rules)[0])), "")


def _false_stop(run: Sequence[Block], true: float) -> bool:
    return (why := _stops(run)) != "" and (why == "gain") != (true < 0)


def blocks_until(sd: float, change: float) -> int:
    """How many blocks that differ by so much it takes until that is seen, where chance is neither way."""

    def half(blocks: int) -> float:
        return Moments(blocks, 0.0, (blocks - 1) * sd * sd).interval(ALPHA).high

    return next(n for n in range(2, 100_000) if half(n) < -log(1 - change))


def power(sd: float) -> list[str]:
    return [f"{sd:g}", *(str(blocks_until(sd, change)) for change in CHANGES)]


def day(told: Callable[[str], None]) -> dict[str, Any]:
    """A day in which the preset gets worse at noon: its window is too small from then on for what comes."""
    rules, noon_s, seed = _DAY.rules, 43_200.0, 1
    experiment = asked(_DAY, round(2 * noon_s / rules.slice_s), seed)
    morning = experiment.preset
    worse = replace(morning, admission=Fixed(window=1))
    found = begun(rules, "day")
    result = simulate(
        experiment,
        controller=partial(
            Switched, experiment=found, preset_at=lambda now_ns: morning if now_ns < noon_s * 1e9 else worse
        ),
    )
    told("the day")
    state = found.state
    before = [block.completion for block in state.blocks if block.began_ns < noon_s * 1e9]
    after = [block.completion for block in state.blocks if block.began_ns >= noon_s * 1e9]
    ended_s = state.ended_ns / 1e9

    def mean_s(begin_s: float, end_s: float) -> float:
        return statistics.fmean(
            (each.ended_ns - each.arrived_ns) / 1e9
            for each in result.programs
            if begin_s <= each.arrived_ns / 1e9 < end_s
        )

    return {
        "ended": state.ended,
        "ended_after_noon_h": (ended_s - noon_s) / 3600,
        "since_after_noon_h": (state.since_ns / 1e9 - noon_s) / 3600,
        "blocks_before": len(before),
        "blocks_after": len(after),
        "change_before": exp(statistics.fmean(before)) - 1,
        "change_after": exp(statistics.fmean(after)) - 1 if after else None,
        "mean_before_s": mean_s(0, noon_s),
        "mean_until_seen_s": mean_s(noon_s, ended_s),
        "mean_then_s": mean_s(ended_s, 2 * noon_s),
        "told": [(each.name, each.value, each.low, each.high) for each in found.estimates()],
    }


def cells(row: dict[str, Any]) -> Iterator[str]:
    yield from (row["load"], row["preset"], f"{row['stock_jct_s']:.0f}")
    yield from (f"{row[name]:+.1%}" for name in ("jct_ratio", "truth"))
    yield "{:+.2f} ± {:.2f}".format(*row["carried"])
    yield from (f"{row['half']:.2f}", f"{row['sd']:.2f}")
    yield from (f"{row[name]}/{row['runs']}" for name in ("covered", "false"))
    yield from (f"{row[name]:.1%}" for name in ("apart_covered_ratio", "apart_false_ratio", "same_stopped_ratio"))
    yield ", ".join(f"{each:.0%}" for each in row["censored_ratio"])
    yield from (f"{row['cost_ratio']:+.0%}", f"{row['seen_programs']:,}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--slices", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--keys", type=int, default=2, help="switchbacks of each seed")
    parser.add_argument("--load", action="append", choices=[load.name for load in LOADS])
    parser.add_argument("--power", action="store_true", help="only how many blocks it takes to see a change")
    parser.add_argument("--day", action="store_true", help="only a day in which the preset gets worse at noon")
    parser.add_argument("--json", action="store_true", help="a line for each load as soon as it is there")
    options = parser.parse_args(arguments)
    began_s = time.monotonic()

    def told(what: str) -> None:
        print(f"{what}: after {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)

    if options.power:
        print("\n".join(table(["sd", *(f"{change:.0%}" for change in CHANGES)], map(power, SPREADS))))
        return
    if options.day:
        print(json.dumps(day(told), indent=1))
        return
    found = []
    for load in LOADS:
        if not options.load or load.name in options.load:
            found.append(measure(load, options.slices, options.seeds, options.keys, told))
            if options.json:
                print(json.dumps(found[-1]), flush=True)
    if not options.json:
        print("\n".join(table(_HEAD, [list(cells(row)) for row in found])))


if __name__ == "__main__":
    main()
