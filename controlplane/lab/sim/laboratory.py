"""Presets that exist in the simulator only, as what they decide by cannot be known elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.admission.fixed import Fixed
from controlplane.core.memory.lru import Lru
from controlplane.core.packing.fcfs import Fcfs
from controlplane.core.placement.session import Session as SessionAware
from controlplane.core.presets import FORESEEING, PRESETS, Preset, preset
from controlplane.core.priority.fcfs import Fcfs as RequestFcfs
from controlplane.core.retention.never import Never
from controlplane.lab.sim.clairvoyant import AsDecided, Belady, Decision, LeastLeft, LeastLeftCalls, TakeBack
from controlplane.lab.sim.engine_spec import EngineSpec
from controlplane.lab.sim.foresight import Foresight
from controlplane.lab.sim.session import Session
from controlplane.lab.workload.trace import ProgramTrace


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
