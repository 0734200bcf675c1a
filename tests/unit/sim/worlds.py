"""A world of toy engines under a controller that is scripted, or a real one; and what was heard in it."""

from collections.abc import Sequence
from typing import Any

from engine_operations import TOY
from experiments import experiment

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Pressure
from controlplane.core.policies.presets import PRESETS
from controlplane.core.policies.protocols import Window
from controlplane.lab.experiment import Experiment
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.fleet import Fleet, Site
from controlplane.lab.sim.hardware import Profile
from controlplane.lab.sim.kernel import Kernel
from controlplane.lab.sim.session import Session
from controlplane.lab.sim.turn_events import Publisher
from controlplane.lab.sim.world import World
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trace import ProgramTrace, Turn


class ControllerDouble:
    """Admits everybody, or nobody; answers events with scripted commands."""

    def __init__(self, *, admits: bool = True, **answers: list[cmd.Command]) -> None:
        self.preset = PRESETS["fcfs"]
        self.window = Window(limit=3, window=3.5, reason="")
        self.pressure = Pressure()
        self.events: list[tuple[int, ev.Event]] = []
        self._admits = admits
        self._answers = answers
        self._due: list[cmd.Command] = []

    def receive(self, event: ev.Event, now_ns: int) -> None:
        self.events.append((now_ns, event))
        if isinstance(event, ev.TurnQueued) and self._admits:
            self._due.append(cmd.Admit(program_id=event.program_id))
        self._due += self._answers.get(type(event).__name__, [])

    def next_deadline_ns(self) -> int | None:
        return 0 if self._due else None

    def tick(self, now_ns: int) -> Sequence[cmd.Command]:
        due, self._due = self._due, []
        return due

    def of(self, kind: type[ev.Event]) -> list[tuple[int, Any]]:
        return [(now_ns, event) for now_ns, event in self.events if type(event) is kind]


def trace_of(*turns: Turn, name: str = "p") -> ProgramTrace:
    return ProgramTrace(program_id=name, source="test", turns=turns)


def world_of(
    *programs: ProgramTrace,
    control: Any = None,
    pool_blocks: int = 1000,
    profile: Profile = TOY,
    telemetry: Telemetry = Telemetry.FULL,
    **options: Any,
) -> World:
    publisher = Publisher("sim/engine/1")
    engine = EngineModel(profile, pool_blocks=pool_blocks, publisher=publisher)
    options = {"arrivals_ns": [0] * len(programs), "control_delay_ns": 0} | options
    return World(
        Kernel(),
        Fleet([Site(engine, publisher)]),
        control or ControllerDouble(),
        [Session(program, telemetry=telemetry) for program in programs],
        **options,
    )


TWO_TURNS = (
    Turn(input_tokens=100, output_tokens=11, tool="bash", tool_ms=5.0),
    Turn(input_tokens=200, output_tokens=1),
)


def spec(preset: str = "mars", **changes: Any) -> Experiment:
    # A prefix that others left warm may beat the ideal time.
    return experiment(**{"pool_tokens": 40_000, "shared_prefix": 0, "preset": PRESETS[preset], **changes})
