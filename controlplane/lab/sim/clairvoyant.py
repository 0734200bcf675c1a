"""A preset that exists in the simulator only, as its policies know the future.

Whoever has least left goes first, and what is needed last is evicted first.

Each tick the programs that hold a slot are weighed with those that wait, by what each still takes of the scarcer of
memory and engine (shortest remaining processing time, with what is left being true). A program that waits is let in
when its next turn fits beside the next turns of all that hold a slot. Else slots are taken back for it between
turns: of programs whose tool takes so long that their context is not worth its room, then of those that have much
more left. Eviction is Belady's: the context whose next use is furthest away. That is no optimum, which nobody can
compute, but a yardstick: ``controlplane/lab/sim/bound.py`` says what nobody gets below.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.commands import Command, Pause
from controlplane.core.model.types import Pressure, Program, QueuedProgram, Status
from controlplane.core.policies.admission.fixed import Fixed
from controlplane.core.policies.memory.lru import Lru
from controlplane.core.policies.memory.victims import all_or_nothing, unpin_until
from controlplane.core.policies.packing.fcfs import Fcfs
from controlplane.core.policies.placement.session import Session as SessionAware
from controlplane.core.policies.presets import FORESEEING, PRESETS, Preset, preset
from controlplane.core.policies.priority.fcfs import Fcfs as RequestFcfs
from controlplane.core.policies.protocols import (
    STATELESS,
    EngineShape,
    Fit,
    NoState,
    Pinned,
    QueuedCall,
    ResidentView,
    RetentionPolicy,
    Stateless,
    Window,
)
from controlplane.core.policies.retention.never import Never
from controlplane.lab.sim.engine_spec import EngineSpec
from controlplane.lab.sim.foresight import Foresight
from controlplane.lab.sim.session import Session
from controlplane.lab.workload.trace import ProgramTrace

_FULL_RATIO = 0.93  # of the pool: above it contexts that grow push each other out
_MUCH_MORE = 2.0  # times as much left: less is not worth a second prefill
_LAST = 1 << 62


@dataclass(slots=True)
class Decision:
    """What one tick decided, for the policies that carry it out, and where the controller's programs are."""

    programs: Mapping[str, Program] = field(default_factory=dict)
    chosen: list[str] = field(default_factory=list)  # let in, in this order
    paused: list[tuple[str, str]] = field(default_factory=list)  # taken back, and why

    def holds_slot(self, program_id: str) -> bool:
        program = self.programs.get(program_id)
        return program is None or program.status is Status.ACTIVE


@dataclass(frozen=True, slots=True)
class Holder:
    """A program that has a slot and no turn in the engine: its slot can be taken back."""

    session: Session
    need_tokens: int
    cost_ns: float
    away: bool


@dataclass(frozen=True, slots=True)
class LeastLeft:
    """Admission: decides for all policies here, who comes and who goes."""

    foresight: Foresight
    decision: Decision
    shared_tokens: int  # a prefix that all contexts begin with and the pool holds once

    def initial(self) -> Stateless:
        return STATELESS

    def update(
        self, state: Stateless, facts: Estimates, pressure: Pressure, now_ns: int
    ) -> tuple[Stateless, Window]:
        decision, foresight = self.decision, self.foresight
        decision.chosen, decision.paused = [], []
        waiting: list[tuple[float, str, int]] = []
        holders: list[Holder] = []
        room = self._most_tokens
        for name, program in decision.programs.items():
            session = foresight.session(name)
            if session is None or session.ended:
                continue
            if program.status is Status.ACTIVE:
                need = self._need_tokens(session)
                room -= need
                if session.turn_ended_ns >= 0:
                    away = foresight.is_away(session, now_ns)
                    holders.append(Holder(session, need, foresight.cost_ns(session), away))
            elif session.held and program.queued_turns:
                waiting.append((foresight.cost_ns(session), name, self._need_tokens(session)))
        holders.sort(key=lambda holder: (not holder.away, -holder.cost_ns))
        if room < 0:
            room += self._take_back(holders, -room, -1.0, "the pool is too small for all of them")
        for cost_ns, name, need in sorted(waiting):
            if need > room:
                room += self._take_back(holders, need - room, cost_ns, f"{name} has less left")
            if need > room and pressure.programs_active + len(decision.chosen):
                break
            decision.chosen.append(name)
            room -= need
        limit = max(1, pressure.programs_active + len(decision.chosen))
        return state, Window(
            limit=limit, window=float(limit), reason=f"{len(waiting)} wait, {room} tokens are left"
        )

    @property
    def _most_tokens(self) -> int:
        return max(1, int(_FULL_RATIO * self.foresight.pool_tokens) - self.shared_tokens)

    def _need_tokens(self, session: Session) -> int:
        return min(self._most_tokens, max(1, self.foresight.need_tokens(session) - self.shared_tokens))

    def _take_back(self, holders: list[Holder], short_tokens: int, cost_ns: float, why: str) -> int:
        """Slots that make room for a program with so much left, or none if they do not do; negative: any do.

        Returns the tokens that they leave.
        """
        going: list[Holder] = []
        gained = 0
        for holder in holders:
            if gained >= short_tokens or not (holder.away or holder.cost_ns >= _MUCH_MORE * cost_ns):
                break
            going.append(holder)
            gained += holder.need_tokens
        if gained < short_tokens and cost_ns >= 0:
            return 0
        del holders[: len(going)]
        self.decision.paused += [(holder.session.program_id, why) for holder in going]
        return gained


@dataclass(frozen=True, slots=True)
class AsDecided:
    """Packing: those that admission chose, then the others."""

    looks_ahead: ClassVar[bool] = False
    groups: ClassVar[bool] = False
    ages: ClassVar[bool] = True
    decision: Decision

    def order(
        self, queue: Sequence[QueuedProgram], facts: Estimates, pressure: Pressure, now_ns: int
    ) -> Sequence[QueuedProgram]:
        rank = {name: place for place, name in enumerate(self.decision.chosen)}
        return sorted(queue, key=lambda waiting: rank.get(waiting.program_id, _LAST))


@dataclass(frozen=True, slots=True)
class TakeBack(NoState, RetentionPolicy[Stateless]):
    """Retention: pauses those that admission chose. Nothing is pinned: eviction knows who comes back when."""

    decision: Decision

    def plan(
        self,
        state: Stateless,
        programs: Mapping[str, Program],
        changed: Sequence[Program],
        facts: Estimates,
        pressure: Pressure,
        now_ns: int,
    ) -> tuple[Stateless, Sequence[Command]]:
        self.decision.programs = programs
        paused, self.decision.paused = self.decision.paused, []
        return state, [
            Pause(program_id=name, reason=why) for name, why in paused if programs[name].status is Status.ACTIVE
        ]


@dataclass(frozen=True, slots=True)
class LeastLeftCalls:
    """The engine's queue: calls of whoever has least left first."""

    asks_cached: ClassVar[bool] = False
    foresight: Foresight

    @property
    def window_ns(self) -> int:
        return 0

    def order(self, calls: Sequence[QueuedCall], engine: EngineShape, now_ns: int) -> Sequence[QueuedCall]:
        return sorted(calls, key=lambda call: (self._cost_ns(call.program_id), call.turn_id))

    def _cost_ns(self, program_id: str) -> float:
        session = self.foresight.session(program_id)
        return 0.0 if session is None else self.foresight.cost_ns(session)

    def level(self, footprint_blocks: int, served_tokens: int, engine: EngineShape) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Belady:
    """Memory: who ended goes first, then who lost its slot, then whose next turn is furthest away."""

    shrinks: ClassVar[bool] = False
    pins_outlast_waits: ClassVar[bool] = False
    pin_budget_ratio: ClassVar[float] = 1.0
    retracts_by_level: ClassVar[bool] = False
    foresight: Foresight
    decision: Decision

    def unpin(self, pins: Sequence[Pinned], shortfall_blocks: int, stuck: bool) -> Sequence[str]:
        return unpin_until(pins, shortfall_blocks, key=lambda pin: pin.until_ns)

    def host_rank(self, label: str, parked: bool) -> int:
        return 0

    def fit(
        self,
        chunk_blocks: int,
        shortfall_blocks: int,
        least_blocks: int,
        candidates: Iterable[ResidentView],
        now_ns: int,
    ) -> Fit:
        if shortfall_blocks <= 0:
            return Fit(chunk_blocks=chunk_blocks, victims=())
        return all_or_nothing(chunk_blocks, shortfall_blocks, sorted(candidates, key=self._next_use))

    def _next_use(self, resident: ResidentView) -> tuple[int, int, float]:
        session = self.foresight.session(resident.program_id)
        if session is None:  # a prefix that whoever comes next begins with
            return 3, 0, 0.0
        if session.ended:
            return 0, 0, 0.0
        slot = 2 if self.decision.holds_slot(resident.program_id) else 1
        return slot, -self.foresight.due_ns(session), -self.foresight.cost_ns(session)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPreset(Preset):
    """A preset whose policies are made anew for each run; its own only stand in for them."""

    def of_run(
        self,
        sessions: Sequence[Session],
        programs: Sequence[ProgramTrace],
        engine: EngineSpec,
        shared_tokens: int,
    ) -> Preset:
        """The policies of one run of these programs on that engine."""
        foresight, decision = Foresight(sessions, programs, engine, shared_tokens), Decision()
        return Preset(
            name=self.name,
            summary=self.summary,
            admission=LeastLeft(foresight, decision, shared_tokens),
            packing=AsDecided(decision),
            retention=TakeBack(decision),
            priority=LeastLeftCalls(foresight),
            placement=self.placement,
            memory=Belady(foresight, decision),
        )


LABORATORY: dict[str, LabPreset] = {
    name: LabPreset(
        name=name,
        summary=summary,
        admission=Fixed(),
        packing=Fcfs(),
        retention=Never(),
        priority=RequestFcfs(),
        placement=SessionAware(),
        memory=Lru(),
    )
    for name, summary in FORESEEING.items()
}


def simulated_preset(name: str) -> Preset:
    """A preset of the laboratory or of the daemon. Raises ``UnknownPolicy``."""
    return LABORATORY[name] if name in LABORATORY else preset(name)


SIMULATED = (*PRESETS, *LABORATORY)
