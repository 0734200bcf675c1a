"""What `penstock what-if` says of runs that were recorded, and what was then measured when the alternative was run.

    .venv/bin/python bench/what_if.py [--programs N] [--rate R] [--time-scale X] [--repeat N] [--keep FOLDER]
                                      [--engine sglang [--smoke]] [--case N]...

Each run is whole: a nats-server, a daemon that records, the engine (the double, or with ``--engine`` a real one on
this machine's CPU), and the same agent programs with the same arrivals, their tools reported. Of each recorded run:
how far its replay under its own policy is from what its log says, then what is expected of an alternative, and what
the log of a run under that alternative says: another one of the recorded runs, or one with another pool.

The double runs faster than real time, and a real engine on a CPU shares it with all else, so that what the machine
does meanwhile is in each figure. One run is repeated: what it differs by is what no prediction can be better than.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed

from ab.loop import EngineLoop, Load, add_options, load_of
from support.whole_loop import Loop

from controlplane.lab.compare.markdown import table
from controlplane.lab.whatif.answer import Answer
from controlplane.lab.whatif.figures import NAMES, Figures, change
from controlplane.lab.whatif.question import Question
from controlplane.lab.whatif.replays import Replays, Stretch
from controlplane.lab.whatif.show import LABELS, by, figure


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the whole loop."""

    preset: str
    pool: int = 1  # times the usual one
    again: bool = False

    @property
    def name(self) -> str:
        size = "" if self.pool == 1 else f", pool of {self.pool} times that"
        return f"{self.preset}{size}{' again' if self.again else ''}"


Case = tuple[Run, Question, Run]
CASES: tuple[Case, ...] = (
    (Run("fcfs"), Question(preset="penstock"), Run("penstock")),
    (Run("penstock"), Question(pool_tokens="2x"), Run("penstock", 2)),
    (Run("continuum"), Question(preset="fcfs"), Run("fcfs")),
    (Run("mars"), Question(preset="thunderagent"), Run("thunderagent")),
    (Run("thunderagent"), Question(preset="mars"), Run("mars")),
)
AGAIN = Run("fcfs", again=True)


class Runs:
    """Logs by run, each made when it is first wanted."""

    def __init__(self, given: argparse.Namespace, load: Load, folder: Path) -> None:
        self._given, self._load, self._folder = given, load, folder
        self._known: dict[Run, Replays] = {}

    def of(self, run: Run) -> Replays:
        if run not in self._known:
            folder, load = self._folder / run.name.replace(" ", "-").replace(",", ""), self._load
            loop = load.make(folder, run.preset, run.pool * load.pool_tokens, "")
            if not loop.record.exists():
                self._record(run, loop)
            stretch = Stretch(log=loop.record, repeat=self._given.repeat, chunk_tokens=load.chunk_tokens)
            self._known[run] = Replays(stretch)
        return self._known[run]

    def _record(self, run: Run, loop: Loop | EngineLoop) -> None:
        programs = self._given.programs
        try:
            loop.start()
            result = loop.run(programs)
        finally:
            loop.stop()
        print(f"{run.name}: {result.summary.programs_ended} of {programs} programs ended", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--programs", type=int, default=40)
    add_options(parser)
    parser.add_argument("--case", type=int, action="append", choices=range(1, len(CASES) + 1), help="default: all")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="folder of the logs; those that are there are not made again")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        runs = Runs(given, load_of(given), (given.keep or Path(scratch)).resolve())
        _print(runs, [CASES[number - 1] for number in given.case or range(1, len(CASES) + 1)])
        if not given.case:
            _print_once_more(runs)


def _print(runs: Runs, cases: Sequence[Case]) -> None:
    answered = [(run, runs.of(run).ask(question), runs.of(other)) for run, question, other in cases]
    print("Replayed under the recorded policy:\n")
    header = ["recorded", *(LABELS[name] for name in NAMES)]
    print("\n".join(table(header, (_replayed(run, answer) for run, answer, _ in answered))))
    print("\nExpected of the alternative, and measured when it was run:\n")
    header = ["recorded", "what if", "figure", "recorded", "expected", "in one run (95%)", "measured", "off by"]
    rows = [row for run, answer, other in answered for row in _expected(run, answer, other.measured.figures())]
    print("\n".join(table(header, rows)))


def _print_once_more(runs: Runs) -> None:
    before, after = runs.of(Run("fcfs")).measured.figures(), runs.of(AGAIN).measured.figures()
    differ = (by(name, change(name, getattr(before, name), getattr(after, name))) for name in NAMES)
    print(f"\nThe run under fcfs once more: {', '.join(map(' '.join, zip(LABELS.values(), differ, strict=True)))}")


def _replayed(run: Run, answer: Answer) -> list[str]:
    cells = (
        f"{figure(name, getattr(answer.measured, name))} → {figure(name, getattr(answer.replayed, name))} "
        f"({by(name, answer.replay_error[name])})"
        for name in NAMES
    )
    return [run.name, *cells]


def _expected(run: Run, answer: Answer, measured: Figures) -> Iterator[list[str]]:
    for name in NAMES:
        expected, found = getattr(answer.predicted, name), getattr(measured, name)
        low, high = answer.bounds(name)
        yield [
            run.name,
            answer.question.title,
            LABELS[name],
            figure(name, getattr(answer.measured, name)),
            figure(name, expected),
            f"{figure(name, low)} to {figure(name, high)}",
            f"{figure(name, found)}{'' if low <= found <= high else ' (outside)'}",
            by(name, change(name, found, expected)),
        ]


if __name__ == "__main__":
    main()
