"""A program's ideal time: how long it takes alone on the same engine, with nobody before or beside it."""

from collections.abc import Callable

from controlplane.core.events import TurnEnded
from controlplane.lab.sim.call import ContextTooLong
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.session import Session
from controlplane.lab.workload.trace import ProgramTrace, gap_ns


def solo_ns(program: ProgramTrace, engine: EngineModel, shared_prefix_tokens: int = 0) -> int:
    """The program's completion time on an engine of its own; 0 if it does not fit there."""
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
            now_ns += gap_ns(turn)
    return now_ns


class IdealTimes:
    """Solo times, each simulated once. ``build`` makes a fresh engine like the one under test."""

    def __init__(self, build: Callable[[], EngineModel]) -> None:
        self._build = build
        self._known: dict[tuple[ProgramTrace, int], int] = {}

    def of(self, program: ProgramTrace, shared_prefix_tokens: int) -> int:
        """The program's solo time, in ns."""
        key = (program, shared_prefix_tokens)
        if key not in self._known:
            self._known[key] = solo_ns(program, self._build(), shared_prefix_tokens)
        return self._known[key]
