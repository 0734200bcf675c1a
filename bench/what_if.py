"""What `penstock what-if` says of runs that were recorded, and what was then measured when the alternative was run.

    .venv/bin/python bench/what_if.py [--programs N] [--rate R] [--time-scale X] [--repeat N] [--keep FOLDER]

Each run is whole: a nats-server, a daemon that records, the engine double, and the same agent programs with the
same arrivals, their tools reported. Of each recorded run: how far its replay under its own policy is from what its
log says, then what is expected of an alternative, and what the log of a run under that alternative says: another
one of the recorded runs, or one with another pool.

The double runs faster than real time, so that what the machine does meanwhile is in each figure. One run is
repeated: what it differs by is what no prediction can be better than.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed

from support.whole_loop import Loop

from controlplane.lab.compare.markdown import table
from controlplane.lab.whatif.answer import Answer
from controlplane.lab.whatif.figures import NAMES, Figures, change
from controlplane.lab.whatif.question import Question
from controlplane.lab.whatif.replays import Replays, Stretch
from controlplane.lab.whatif.show import LABELS, by, figure

POOL_TOKENS = 60_000
LARGER_TOKENS = 2 * POOL_TOKENS


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the whole loop."""

    preset: str
    pool_tokens: int = POOL_TOKENS
    again: bool = False

    @property
    def name(self) -> str:
        size = "" if self.pool_tokens == POOL_TOKENS else f", pool of {self.pool_tokens:,}"
        return f"{self.preset}{size}{' again' if self.again else ''}"


CASES: tuple[tuple[Run, Question, Run], ...] = (
    (Run("fcfs"), Question(preset="penstock"), Run("penstock")),
    (Run("penstock"), Question(pool_tokens="2x"), Run("penstock", LARGER_TOKENS)),
    (Run("continuum"), Question(preset="fcfs"), Run("fcfs")),
    (Run("mars"), Question(preset="thunderagent"), Run("thunderagent")),
    (Run("thunderagent"), Question(preset="mars"), Run("mars")),
)
AGAIN = Run("fcfs", again=True)


class Runs:
    """Logs by run, each made when it is first wanted."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self._given, self._folder = given, folder
        self._known: dict[Run, Replays] = {}

    def of(self, run: Run) -> Replays:
        if run not in self._known:
            folder = self._folder / run.name.replace(" ", "-").replace(",", "")
            log = folder / "run.jsonl"
            if not log.exists():
                self._record(run, folder)
            self._known[run] = Replays(Stretch(log=log, repeat=self._given.repeat))
        return self._known[run]

    def _record(self, run: Run, folder: Path) -> None:
        given = self._given
        loop = Loop(folder, run.preset, pool_tokens=run.pool_tokens, rate=given.rate, time_scale=given.time_scale)
        try:
            loop.start()
            result = loop.run(given.programs)
        finally:
            loop.stop()
        ended = result.summary.programs_ended
        print(f"{run.name}: {ended} of {given.programs} programs ended", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--programs", type=int, default=40)
    parser.add_argument("--rate", type=float, default=0.3, help="programs/s of the engine's time")
    parser.add_argument("--time-scale", type=float, default=20.0)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="folder of the logs; those that are there are not made again")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        runs = Runs(given, given.keep or Path(scratch))
        _print(runs)


def _print(runs: Runs) -> None:
    answered = [(run, runs.of(run).ask(question), runs.of(other)) for run, question, other in CASES]
    print("Replayed under the recorded policy:\n")
    header = ["recorded", *(LABELS[name] for name in NAMES)]
    print("\n".join(table(header, (_replayed(run, answer) for run, answer, _ in answered))))
    print("\nExpected of the alternative, and measured when it was run:\n")
    header = ["recorded", "what if", "figure", "recorded", "expected", "in one run (95%)", "measured", "off by"]
    rows = [row for run, answer, other in answered for row in _expected(run, answer, other.measured.figures())]
    print("\n".join(table(header, rows)))
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
