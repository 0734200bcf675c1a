"""Sandboxes in the simulator: what freezing them changes for the host, and for whom."""

from dataclasses import replace

import pytest

from controlplane.core.model.events import Event, SandboxSampled
from controlplane.core.policies.presets import PRESETS
from controlplane.core.scheduling.freezing import FreezeRules
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.sim.sandboxes import SandboxModel
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.run import RunResult

MODEL = SandboxModel(cpus=0.1)


class Heard:
    def __init__(self) -> None:
        self.events: list[SandboxSampled] = []
        self.most_bytes = 0
        self._bytes: dict[str, int] = {}

    def event(self, event: Event, now_ns: int) -> None:
        if isinstance(event, SandboxSampled):
            self.events.append(event)
            self._bytes[event.program_id] = 0 if event.gone else event.held_bytes
            self.most_bytes = max(self.most_bytes, sum(self._bytes.values()))

    def tick(self, now_ns: int) -> None: ...
    def command(self, command: object, now_ns: int) -> None: ...


def ran(model: SandboxModel | None, rules: FreezeRules) -> tuple[RunResult, Heard]:
    """A storm of 40 programs on a pool for a few."""
    heard = Heard()
    asked = Experiment(
        workload=Workload(trace="synthetic:swe-bench", programs=40, contention=True, cpus=4.0),
        hardware=Hardware(pool_tokens=64_000),
        preset=PRESETS["penstock"],
        arrival=Poisson(2.0),
        rules=ControlRules(sandboxes=rules),
        sandboxes=model,
    )
    return simulate(asked, recorder=heard), heard


def test_what_waits_leaves_its_cpus_to_what_runs() -> None:
    (plain, _), (awake, _), (frozen, heard) = (
        ran(None, FreezeRules()),
        ran(MODEL, FreezeRules()),
        ran(MODEL, FreezeRules(freeze=True)),
    )
    slow = [run.summary.tool_slowdown_ratio for run in (plain, frozen, awake)]
    assert slow == sorted(slow)
    assert frozen.summary.makespan_s < awake.summary.makespan_s
    assert all(run.summary.programs_ended == 40 for run in (plain, awake, frozen))
    assert any(each.frozen for each in heard.events)
    assert not any(each.late_ns for each in heard.events), "each was awake before its tool"


def test_waking_that_takes_long_is_begun_in_time_once_that_is_known() -> None:
    _, heard = ran(replace(MODEL, wake_s=8.0), FreezeRules(freeze=True))
    wakes = [each for each in heard.events if each.took_ns and not each.frozen]
    late = [bool(each.late_ns) for each in wakes]
    assert len(wakes) >= 10
    assert sum(late[len(late) // 2 :]) <= sum(late[: len(late) // 2])


@pytest.mark.parametrize("reclaimed", [0.0, 0.75])
def test_a_host_of_little_memory_holds_what_it_can(reclaimed: float) -> None:
    model = replace(MODEL, host_gb=10.0, reclaimed_ratio=reclaimed)
    rules = FreezeRules(freeze=True, memory_gb=10.0 if reclaimed else 0.0)
    run, heard = ran(model, rules)
    assert run.summary.programs_ended == 40
    assert heard.most_bytes <= (10 << 30)
