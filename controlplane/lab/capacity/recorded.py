"""What is asked how many agents it serves: a preset on the machine of a recorded stretch, with its programs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from controlplane.core.model.errors import ConfigError
from controlplane.lab.capacity.slo import Point, Served, point, served
from controlplane.lab.capacity.systems import System, programs_for
from controlplane.lab.simulate import simulate
from controlplane.lab.whatif.question import Question
from controlplane.lab.whatif.replays import Replays, TraceWindow
from controlplane.lab.workload.arrivals import Closed
from controlplane.lab.workload.families import all_of, renamed
from controlplane.lab.workload.trace import ProgramTrace
from controlplane.wire.log import read_log


def is_recording(path: Path) -> bool:
    """Whether it begins as an event log does."""
    try:
        next(read_log(path))
    except ConfigError:
        return False
    return True


def recorded(log: Path, *, presets: Sequence[str], seeds: Sequence[int]) -> list[System]:
    """Each preset on the engines of the log, calibrated by it. Raises ``ConfigError``."""
    replays = Replays(TraceWindow(log=log))
    whole = replays.observed.whole
    programs = [program for program in replays.observed.programs if program.program_id in whole]
    mean_tokens = sum(program.context_tokens for program in programs) / len(programs)
    first = max(1, round(len(replays.recorded.engines) * replays.pool_tokens / mean_tokens))
    return [
        System(name=name, measure=_Recorded(replays, programs, name, tuple(seeds)), first=first, preset=name)
        for name in presets
    ]


@dataclass(frozen=True, slots=True)
class _Recorded:
    """Runs one seed after the other: each draws whole programs of the log, which begin again under other names."""

    replays: Replays
    programs: Sequence[ProgramTrace]
    preset: str
    seeds: tuple[int, ...]

    def __call__(self, agents: int) -> Point:
        return point(agents, [self._run(agents, seed) for seed in self.seeds])

    def _run(self, agents: int, seed: int) -> Served:
        order = np.random.default_rng(seed).permutation(len(self.programs))
        drawn = islice(cycle(self.programs[place] for place in order), programs_for(agents))
        named = all_of(renamed((program,), f"{number}-{{}}") for number, program in enumerate(drawn))
        asked = self.replays.experiment(Question(preset=self.preset), named, Closed(agents))
        return served(simulate(replace(asked, seed=seed)), agents)
