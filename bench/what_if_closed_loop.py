"""How far `penstock what-if` is off where no machine adds anything: runs of the simulator are its truth.

    .venv/bin/python bench/what_if_closed_loop.py [--programs N] [--rate R]... [--seeds N] [--repeat N] [--jitter X]

Six presets run in virtual time, and each run's log is replayed: under its own preset (what the replay is off by),
and under the five others, which were run as well (what the prediction is off by, and how often what they did lies
in the intervals). Two more lines tell where it comes from: the replay with the engine's own step times in place of
fitted ones, and how much a run differs from the same one whose tools take a thousandth more or less. The same
arguments give the same figures.
"""

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed

from support.closed_loop import ENGINE, experiment, record

from controlplane.lab.compare.markdown import table
from controlplane.lab.sim.hardware import Profile
from controlplane.lab.sim.profile import load_profile
from controlplane.lab.simulate import simulate
from controlplane.lab.whatif.figures import NAMES, SHARES, Figures, Outcome, change
from controlplane.lab.whatif.question import Question
from controlplane.lab.whatif.replays import Replays, Stretch
from controlplane.lab.whatif.show import LABELS
from controlplane.lab.workload.trace import ProgramTrace

PRESETS = ("fcfs", "mars", "penstock", "thunderagent", "mori", "continuum")
_RUNS = 6  # that differ by the jitter
Errors = dict[str, list[float]]


class WithOwnStepTimes(Replays):
    """On the engine that was simulated, not on one that was fitted."""

    def _profile(self) -> Profile:
        return load_profile(ENGINE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print a table for each rate."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--programs", type=int, default=40)
    parser.add_argument("--rate", type=float, action="append", help="programs/s; default: 0.15 and 0.5")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--jitter", type=float, default=0.001, help="of tool times, the standard deviation")
    given = parser.parse_args(arguments)
    for rate in given.rate or (0.15, 0.5):
        print(f"\n{given.programs} programs at {rate:g}/s, {given.seeds} seeds: median, and 90% are below\n")
        rows = _rows(given, rate)
        print("\n".join(table(["", *(LABELS[name] for name in NAMES)], rows)))


def _rows(given: argparse.Namespace, rate: float) -> Iterator[list[str]]:
    own, replayed, predicted, differs = (defaultdict[str, list[float]](list) for _ in range(4))
    means, ones = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    by_preset = {preset: defaultdict[str, list[float]](list) for preset in PRESETS}
    for seed in range(1, given.seeds + 1):
        with tempfile.TemporaryDirectory() as scratch:
            logs = {
                preset: record(
                    Path(scratch) / f"{preset}.jsonl", preset, programs=given.programs, rate=rate, seed=seed
                )
                for preset in PRESETS
            }
            all_of = {preset: Replays(Stretch(log=log, repeat=given.repeat)) for preset, log in logs.items()}
            truth = {preset: replays.measured.figures() for preset, replays in all_of.items()}
            for preset, replays in all_of.items():
                exact = WithOwnStepTimes(Stretch(log=logs[preset], repeat=1)).ask(Question())
                _add(own, exact.measured, exact.replayed)
                _spread(differs, given, preset, rate, seed)
                for other in PRESETS:
                    answer = replays.ask(Question(preset=other))
                    if other == preset:
                        _add(replayed, answer.measured, answer.replayed)
                        _add(by_preset[preset], answer.measured, answer.replayed)
                        continue
                    _add(predicted, truth[other], answer.predicted)
                    for name in NAMES:
                        was = change(name, getattr(truth[preset], name), getattr(truth[other], name))
                        means[name].append(not answer.change[name].excludes(was))
                        ones[name].append(not answer.expected[name].excludes(was))
    yield ["replay, the engine's own step times", *(_usual(name, own[name]) for name in NAMES)]
    yield ["replay, fitted step times", *(_usual(name, replayed[name]) for name in NAMES)]
    for preset in PRESETS:
        yield [f"of it {preset}", *(_usual(name, by_preset[preset][name]) for name in NAMES)]
    yield ["prediction of another preset", *(_usual(name, predicted[name]) for name in NAMES)]
    yield ["what it did lies in the mean's interval", *(f"{statistics.fmean(means[name]):.0%}" for name in NAMES)]
    yield ["and in that of one run", *(f"{statistics.fmean(ones[name]):.0%}" for name in NAMES)]
    yield [f"two runs, tools {given.jitter:.1%} apart", *(_usual(name, differs[name]) for name in NAMES)]


def _add(errors: Errors, truth: Figures, found: Figures) -> None:
    for name in NAMES:
        errors[name].append(abs(change(name, getattr(truth, name), getattr(found, name))))


def _spread(errors: Errors, given: argparse.Namespace, preset: str, rate: float, seed: int) -> None:
    asked = experiment(preset, programs=given.programs, rate=rate, seed=seed)
    assert asked.trace is not None
    found = []
    for number in range(_RUNS):
        rng = np.random.default_rng(number)
        programs = tuple(_jittered(program, given.jitter, rng) for program in asked.trace.programs)
        run = simulate(replace(asked, trace=replace(asked.trace, programs=programs)))
        names = [program.program_id for program in programs]
        found.append(Outcome(run.programs, run.turns, names=names, whole=set(names), warm=()).figures())
    for one, other in pairwise(found):
        _add(errors, one, other)


def _jittered(program: ProgramTrace, jitter: float, rng: np.random.Generator) -> ProgramTrace:
    return replace(
        program,
        turns=tuple(
            turn
            if turn.tool_ms is None
            else replace(turn, tool_ms=turn.tool_ms * float(rng.lognormal(0.0, jitter)))
            for turn in program.turns
        ),
    )


def _usual(name: str, errors: Sequence[float]) -> str:
    unit = " points" if name in SHARES else "%"
    median, most = np.percentile(errors, (50, 90))
    return f"{100 * median:.1f}, {100 * most:.1f}{unit}"


if __name__ == "__main__":
    main()
