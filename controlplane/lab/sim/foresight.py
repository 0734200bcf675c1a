"""What programs will do, read from the run itself: the sizes and times of all turns and tools to come.

No policy of a real node can know this. The laboratory's can: it is what forecasts are measured against.
"""

from collections.abc import Sequence
from itertools import pairwise

from controlplane.core.model.types import seconds
from controlplane.lab.sim.bound import engine_weight
from controlplane.lab.sim.engine_spec import EngineSpec
from controlplane.lab.sim.hardware import PS, Profile
from controlplane.lab.sim.session import Session
from controlplane.lab.workload.trace import ProgramTrace, gap_ns, reusable_tokens

# What a turn is supposed to take before it runs: nothing is bound to it, it only ranks programs.
_BATCH = 8  # turns that decode together
_SLOWED = 4.0  # times its nominal time, as prefills of others go first
_LEAST_WEIGHT, _MOST_WEIGHT = 1 / 16, 15 / 16
_MOST_KEEP_NS = seconds(3600)


class Plan:
    """One program's turns, and what is left from each of them on.

    ``needs``: tokens that a turn holds at its end. ``costs_ns``: what the program still takes of the scarcer of
    memory (tokens held times how long, over the pool) and engine. ``keep_ns``: for how long its context is worth
    its room in the gap after a turn, against computing it again.
    """

    __slots__ = ("costs_ns", "keep_ns", "needs")

    def __init__(self, program: ProgramTrace, profile: Profile, pool_tokens: int, price_ratio: float) -> None:
        """``price_ratio``: what a second of the engine is worth, in seconds of the whole pool."""
        turns = program.turns
        fresh = [turns[0].input_tokens] + [b.input_tokens - reusable_tokens(a, b) for a, b in pairwise(turns)]
        self.needs = [turn.input_tokens + turn.output_tokens for turn in turns]
        self.keep_ns: list[int] = []
        self.costs_ns: list[float] = []
        space_ns = engine_ns = 0.0
        for turn, new_tokens, needed in zip(turns[::-1], fresh[::-1], self.needs[::-1], strict=True):
            prefill_ns = profile.prefill_ns(turn.input_tokens - new_tokens, new_tokens) + profile.step_overhead_ns
            decode_ns = turn.output_tokens * profile.decode_ps(_BATCH, _BATCH * needed) / PS
            pool_ratio = min(1.0, needed / pool_tokens)
            keep_ns = min(_MOST_KEEP_NS, round(price_ratio * profile.prefill_ns(0, turn.input_tokens) / pool_ratio))
            space_ns += pool_ratio * (_SLOWED * (prefill_ns + decode_ns) + min(gap_ns(turn), keep_ns))
            engine_ns += prefill_ns + decode_ns / _BATCH
            self.keep_ns.append(keep_ns)
            self.costs_ns.append(max(space_ns, engine_ns))
        self.keep_ns.reverse()
        self.costs_ns.reverse()


class Foresight:
    """The sessions of a run, as they are now and as they will go on."""

    def __init__(
        self, sessions: Sequence[Session], programs: Sequence[ProgramTrace], engine: EngineSpec, shared_tokens: int
    ) -> None:
        self.pool_tokens = engine.replicas * engine.size_tokens
        price_ratio = _price_ratio(engine_weight(programs, engine, shared_tokens))
        self._sessions = {session.program_id: session for session in sessions}
        self._plans = {
            program.program_id: Plan(program, engine.profile, self.pool_tokens, price_ratio) for program in programs
        }

    def session(self, program_id: str) -> Session | None:
        """The program's; None for what is no program, as a shared prefix."""
        return self._sessions.get(program_id)

    def need_tokens(self, session: Session) -> int:
        """What its next turn, or the one it is at, holds at its end."""
        return self._plans[session.program_id].needs[_next_index(session)]

    def cost_ns(self, session: Session) -> float:
        """What it still takes of the scarcer of memory and engine, with its whole tree."""
        while session.parent is not None:
            session = session.parent
        return self._tree_cost_ns(session)

    def _tree_cost_ns(self, session: Session) -> float:
        if session.ended:
            return 0.0
        own_ns = self._plans[session.program_id].costs_ns[_next_index(session)]
        return own_ns + sum(self._tree_cost_ns(each) for sent in session.children.values() for each in sent)

    def due_ns(self, session: Session) -> int:
        """When its next turn begins if its tool takes what the trace says; 0: it has begun, or wants to."""
        return session.turn_ended_ns + gap_ns(session.turn) if session.turn_ended_ns >= 0 else 0

    def is_away(self, session: Session, now_ns: int) -> bool:
        """Whether it comes back so late that its context is not worth its room."""
        return self.due_ns(session) - now_ns > self._plans[session.program_id].keep_ns[session.index]


def _price_ratio(engine_weight: float) -> float:
    """The price of the engine in memory, from the weights that make the bound greatest: their shadow prices."""
    weight = min(_MOST_WEIGHT, max(_LEAST_WEIGHT, engine_weight))
    return weight / (1 - weight)


def _next_index(session: Session) -> int:
    return session.index + (session.turn_ended_ns >= 0 and not session.is_last)
