"""A population that changes half-way: how long the estimates are of the old one, and what that costs.

    python bench/population_change.py [--seeds 1,2,3] [--programs 240] [--load 0.9] [--telemetry none]

Small programs of few turns (BFCL v4's statistics) come for the first half of the run, then agents of five kinds.
For spans of programs by their arrival it prints what their longest contexts were expected to be when they were let
in over what they came to be, and by how much that was missed; the mean slowdown (JCT over the time alone on the
engine) under each preset; and each preset's worst minute: the mean slowdown of those who arrived in it, and when.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.controller import Controller
from controlplane.core.presets import PRESETS
from controlplane.lab.compare.markdown import table
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.sim.solo import IdealTimes
from controlplane.lab.simulate import run_of, simulate
from controlplane.lab.sweep.resolve import resolved
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.telemetry import Telemetry

TRACE = "change:synthetic:bfcl-v4>synthetic:five-kinds"
MINUTE_NS = 60 * 10**9
SPANS = 12


@dataclass(slots=True)
class Shadow:
    """A second controller that hears what the run's own heard, and so expects what that one expected."""

    control: Controller
    expected: dict[str, int] = field(default_factory=dict)  # tokens, by program, when it was first let in

    def event(self, event: ev.Event, now_ns: int) -> None:
        self.control.receive(event, now_ns)

    def tick(self, now_ns: int) -> None:
        self.control.tick(now_ns)

    def command(self, command: cmd.Command, now_ns: int) -> None:
        if isinstance(command, cmd.Admit) and command.program_id in self.control.ledger.programs.by_name:
            program = self.control.ledger.programs.by_name[command.program_id]
            self.expected.setdefault(command.program_id, program.expected_tokens)


def one_run(spec: Experiment, ideal: IdealTimes) -> tuple[RunResult, Shadow]:
    shadow = Shadow(Controller(spec.preset, spec.rules))
    return simulate(spec, ideal=ideal, recorder=shadow), shadow


def slowdowns(result: RunResult) -> list[float]:
    """By order of arrival."""
    ordered = sorted(result.programs, key=lambda program: program.arrived_ns)
    return [program.completion_ns / program.ideal_ns for program in ordered]


def worst_minute(result: RunResult) -> tuple[float, int]:
    """The mean slowdown of those who arrived in the worst minute, and which minute that was."""
    minutes = defaultdict(list)
    for program in result.programs:
        minutes[program.arrived_ns // MINUTE_NS].append(program.completion_ns / program.ideal_ns)
    return max((fmean(each), minute) for minute, each in minutes.items())


def study(options: argparse.Namespace) -> dict[str, object]:
    workload = Workload(trace=TRACE, programs=options.programs, telemetry=Telemetry(options.telemetry))
    hardware = Hardware(pool_programs=options.pool_programs)
    arrival = resolved(f"load:{options.load}", workload, hardware)
    size = options.programs // SPANS
    expected, actual, missed = (defaultdict[int, list[float]](list) for _ in range(3))
    slow: dict[str, list[list[float]]] = {name: [[] for _ in range(SPANS)] for name in options.presets}
    worst = defaultdict(list)
    ideal: IdealTimes | None = None
    for seed in options.seeds:
        base = Experiment(workload=workload, hardware=hardware, arrival=arrival, preset=PRESETS["fcfs"], seed=seed)
        plan = run_of(base)
        ideal = ideal or IdealTimes(plan.engine.build)
        longest = {each.program_id: each.context_tokens for each in plan.programs}
        for name in options.presets:
            print(f"  seed {seed}: {name}", file=sys.stderr)
            result, shadow = one_run(replace(base, preset=PRESETS[name]), ideal)
            for at, value in enumerate(slowdowns(result)):
                slow[name][min(SPANS - 1, at // size)].append(value)
            worst[name].append(worst_minute(result))
            if name != "penstock":
                continue
            ordered = sorted(result.programs, key=lambda program: program.arrived_ns)
            for at, program in enumerate(ordered):
                if program.program_id in shadow.expected:
                    span, tokens = min(SPANS - 1, at // size), longest[program.program_id]
                    expected[span].append(shadow.expected[program.program_id])
                    actual[span].append(tokens)
                    missed[span].append(abs(shadow.expected[program.program_id] - tokens))
    return {
        "workload": TRACE,
        "programs": options.programs,
        "pool_programs": options.pool_programs,
        "arrival": str(arrival),
        "telemetry": options.telemetry,
        "seeds": options.seeds,
        "spans": [
            {
                "programs": f"{span * size + 1} to {options.programs if span == SPANS - 1 else (span + 1) * size}",
                "expected_over_actual": sum(expected[span]) / max(1, sum(actual[span])),
                "missed_over_actual": sum(missed[span]) / max(1, sum(actual[span])),
                **{name: fmean(slow[name][span]) for name in options.presets},
            }
            for span in range(SPANS)
        ],
        "worst_minute": {
            name: {"slowdown": fmean(value for value, _ in found), "minutes": [minute for _, minute in found]}
            for name, found in worst.items()
        },
    }


def tables(found: dict[str, object], presets: Sequence[str]) -> str:
    """As Markdown."""
    spans, worst = found["spans"], found["worst_minute"]
    assert isinstance(spans, list)
    assert isinstance(worst, dict)
    rows = [
        [
            span["programs"],
            f"{span['expected_over_actual']:.2f}",
            f"{span['missed_over_actual']:.0%}",
            *(f"{span[name]:.1f}" for name in presets),
        ]
        for span in spans
    ]
    rows.append(["worst minute", "", "", *(f"{worst[name]['slowdown']:.1f}" for name in presets)])
    return "\n".join(table(["programs, by arrival", "expected / actual", "missed by", *presets], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3", help="default: %(default)s")
    parser.add_argument("--presets", default="fcfs,mori,mars,penstock", help="default: %(default)s")
    parser.add_argument("--programs", type=int, default=240, help="default: %(default)s")
    parser.add_argument("--pool-programs", type=float, default=10.0, help="default: %(default)s")
    parser.add_argument("--load", type=float, default=0.9, help="times the saturation rate; default: %(default)s")
    parser.add_argument("--telemetry", default="none", help="none, turns, half or full; default: %(default)s")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.seeds = [int(seed) for seed in options.seeds.split(",")]
    options.presets = options.presets.split(",")
    found = study(options)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{found['workload']}, {found['programs']} programs, {found['arrival']}, telemetry {found['telemetry']},")
    print(
        f"a pool of {found['pool_programs']:g} programs, seeds {options.seeds}; columns of presets: mean slowdown\n"
    )
    print(tables(found, options.presets))


if __name__ == "__main__":
    main()
