"""How well the forecast ranks programs by what they have left, by turn, where the truth is known: simulated.

    python bench/forecast.py [TRACE ...] [--programs 300] [--seeds 1,2]

A trace is `synthetic:NAME`, a file, or `mix:FILE+FILE`. Programs are silent: they send an id and their requests.
A row is of the turns with that index, of programs that came after the first fifth. `rank`: Spearman's correlation
of the memory x time that a program was forecast to hold from there on with what it yet came to hold (its prompts
times their gaps and replies); 1: who knows the future. `by kind`: the same of a forecast that is the true mean of
each kind of agent at that turn. `turns`: turns left as they were forecast over true ones; 1: no bias.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from controlplane.core.estimators.demand_curve import Growing
from controlplane.core.estimators.program_forecast import ProgramForecaster
from controlplane.core.model import events as ev
from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.core.policies.presets import DEFAULT, preset
from controlplane.core.scheduling.controller import Controller
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.simulate import run_of, simulate
from controlplane.lab.sweep.resolve import resolved
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trace import ProgramTrace, gap_ns

TRACES = ("synthetic:five-kinds", "synthetic:ilr-like", "synthetic:swe-bench-verified")
TURNS = (0, 1, 2, 4, 8, 16, 32)
LOAD, POOL_PROGRAMS = "load:1", 5.0
LEARNING = 0.2  # of the programs: those that came first
FEWEST = 20
TOKEN_S = 0.03  # of a reply, where many run
Samples = dict[tuple[str, int], tuple[float, float]]  # by program and turns ended: memory x time and turns left


class Watching(Controller):
    """Remembers what was forecast of each program as its turns came."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.samples: Samples = {}

    def receive(self, event: ev.Event, now_ns: int) -> None:
        super().receive(event, now_ns)
        if not isinstance(event, ev.TurnQueued | ev.TurnSubmitted):
            return
        program, estimates = self.ledger.programs.by_name[event.program_id], self.ledger.estimates
        at = (event.program_id, program.turn_index)
        if program.parent_id or program.turn_index not in TURNS or at in self.samples:
            return
        forecaster = ProgramForecaster(estimates)
        waits = bool(program.queued_turns)
        ahead = forecaster.waiting(program) if waits else Growing(*forecaster.active(program))
        self.samples[at] = ahead.left, estimates.lives.turns_left(program.class_key, program.turn_index)


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0; those of equal values are their mean."""
    places = defaultdict(list)
    for place, value in enumerate(sorted(values)):
        places[value].append(place)
    return [statistics.fmean(places[value]) for value in values]


def correlation(mine: Sequence[float], true: Sequence[float]) -> float:
    """Spearman's; 0 where one of them does not vary."""
    if min(len(set(mine)), len(set(true))) < 2:
        return 0.0
    return statistics.correlation(ranks(mine), ranks(true))


def left_token_s(program: ProgramTrace, turn: int) -> float:
    """What it holds from that turn on, in tokens x seconds."""
    return sum(
        each.input_tokens * (gap_ns(each) / NANOSECONDS_PER_SECOND + TOKEN_S * each.output_tokens)
        for each in program.turns[turn:]
    )


def samples_of(trace: str, programs: int, seed: int) -> tuple[Samples, dict[str, ProgramTrace]]:
    """What was forecast in a run, without those that came while little was known; the programs by name."""
    workload = Workload(trace=trace, programs=programs, cpus=64.0, humans=False, telemetry=Telemetry.NONE)
    hardware = Hardware(pool_programs=POOL_PROGRAMS)
    arrival = resolved(LOAD, workload, hardware)
    run = run_of(
        Experiment(workload=workload, hardware=hardware, arrival=arrival, preset=preset(DEFAULT), seed=seed)
    )
    made: list[Watching] = []

    def watching(*given: Any) -> Watching:
        made.append(Watching(*given))
        return made[-1]

    simulate(run, controller=watching)
    late = {program.program_id for program in run.programs[int(LEARNING * len(run.programs)) :]}
    known = {program.program_id: program for program in run.programs}
    return {at: sample for at, sample in made[0].samples.items() if at[0] in late}, known


def table(trace: str, programs: int, seeds: Sequence[int]) -> None:
    """Print the trace's rows."""
    found: dict[int, list[tuple[float, float, float, float, float]]] = defaultdict(list)
    for seed in seeds:
        samples, known = samples_of(trace, programs, seed)
        of_kind = defaultdict(list)
        for program in known.values():
            for turn in TURNS:
                if turn < len(program.turns):
                    of_kind[program.source, turn].append(left_token_s(program, turn))
        kinds = {at: statistics.fmean(left) for at, left in of_kind.items()}
        for (name, turn), (left, turns) in samples.items():
            program = known[name]
            true, true_turns = left_token_s(program, turn), len(program.turns) - turn
            found[turn].append((left, true, kinds[program.source, turn], turns, true_turns))
    print(f"{trace}\n  turn  programs   rank  by kind  turns")
    for turn, rows in sorted(found.items()):
        if len(rows) >= FEWEST:
            left, true, kind, turns, true_turns = zip(*rows, strict=True)
            rank, by_kind, bias = correlation(left, true), correlation(kind, true), sum(turns) / sum(true_turns)
            print(f"  {turn:4}  {len(rows):8}  {rank:5.2f}  {by_kind:7.2f}  {bias:5.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", default=TRACES)
    parser.add_argument("--programs", type=int, default=300, help="of each run")
    parser.add_argument("--seeds", default="1,2", help="comma-separated")
    options = parser.parse_args()
    for trace in options.traces:
        table(trace, options.programs, [int(seed) for seed in options.seeds.split(",")])


if __name__ == "__main__":
    main()
