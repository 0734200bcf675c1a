"""A program's ideal time: how long it takes alone on the same engine, with nobody before or beside it."""

from collections.abc import Callable, Mapping, Sequence

from controlplane.core.model.events import TurnEnded
from controlplane.lab.sim.call import ContextTooLong
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.session import Session
from controlplane.lab.workload.trace import ProgramTrace, gap_ns

Waits = tuple[tuple[int, int], ...]
"""For how long (ns) the gap behind a turn lasts at least, as the longest of its sub-agents runs: by turns."""


def ideal_time_ns(
    program: ProgramTrace, engine: EngineModel, shared_prefix_tokens: int = 0, waits: Waits = ()
) -> int:
    """The program's completion time on an engine of its own; 0 if it does not fit there.

    Its sub-agents are supposed to have engines of their own.
    """
    least_ns = dict(waits)
    session = Session(program, shared_prefix_tokens=shared_prefix_tokens)
    now_ns = 0
    for index, turn in enumerate(program.turns):
        session.index = index
        now_ns += engine.turn_overhead_ns
        session.begin_turn(now_ns)
        try:
            engine.submit(session.call, now_ns)
        except ContextTooLong:
            return 0
        while (wake_ns := engine.next_wake_ns()) is not None:
            for event in engine.advance(wake_ns):
                if isinstance(event, TurnEnded):
                    now_ns = event.at_ns
        if index < len(program.turns) - 1:
            now_ns += max(gap_ns(turn), least_ns.get(index, 0))
    return now_ns


class IdealTimes:
    """Solo times, each simulated once. ``build`` makes a fresh engine like the one under test."""

    def __init__(self, build: Callable[[], EngineModel]) -> None:
        self._build = build
        self._known: dict[tuple[ProgramTrace, int, Waits], int] = {}

    def of(self, program: ProgramTrace, shared_prefix_tokens: int, waits: Waits = ()) -> int:
        """The program's solo time, in ns."""
        key = (program, shared_prefix_tokens, waits)
        if key not in self._known:
            self._known[key] = ideal_time_ns(program, self._build(), shared_prefix_tokens, waits)
        return self._known[key]

    def of_all(self, programs: Sequence[ProgramTrace], shared_prefix_tokens: int) -> Mapping[str, int]:
        """The same of all, by name; a parent's has the longest of its sub-agents' in it."""
        times: dict[str, int] = {}
        longest: dict[str, dict[int, int]] = {}
        for program in reversed(programs):  # children stand behind their parents
            waits = tuple(sorted(longest.get(program.program_id, {}).items()))
            own = times[program.program_id] = self.of(program, shared_prefix_tokens, waits)
            if program.parent_id:
                of_parent = longest.setdefault(program.parent_id, {})
                of_parent[program.spawn_turn] = max(own, of_parent.get(program.spawn_turn, 0))
        return times
