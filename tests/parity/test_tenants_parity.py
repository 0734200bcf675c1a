"""One tenant is as none: not one decision differs. Several decide alike in simulator, daemon and replay."""

from itertools import groupby
from pathlib import Path

import pytest
from test_parity import Memory

from controlplane.config.model import Config
from controlplane.config.show import show
from controlplane.core.model.tenancy import Tenancy, Tenant
from controlplane.core.policies.presets import PRESETS
from controlplane.core.scheduling.controller import Controller
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.daemon.observe.log_replay import replay_log
from controlplane.daemon.pipeline import DecisionPipeline
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.simulate import rules_of, run_of, simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.synthetic import synthesize
from controlplane.wire.codec import encode_events
from controlplane.wire.log import Header, LogWriter


def asked(preset: str, tenants: str, rules: ControlRules | None = None) -> Experiment:
    """A run that saturates a small pool."""
    return Experiment(
        workload=Workload(trace="drawn", cpus=4, tenants=tenants),
        trace=synthesize("swe-bench", programs=25, seed=3),
        arrival=Poisson(0.5),
        hardware=Hardware(pool_tokens=60_000),
        preset=PRESETS[preset],
        rules=rules or ControlRules(),
        seed=3,
    )


def decisions(experiment: Experiment) -> Memory:
    memory = Memory()
    simulate(experiment, recorder=memory)
    return memory


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_with_one_tenant_not_one_decision_differs(preset: str) -> None:
    plain = decisions(asked(preset, "")).decisions
    assert len(plain) > 25
    assert decisions(asked(preset, "3")).decisions == plain
    floor = Tenancy(named={"default": Tenant(weight=0.2, share=0.5), "nobody": Tenant(share=0.5)})
    assert decisions(asked(preset, "", ControlRules(tenancy=floor))).decisions == plain


@pytest.mark.parametrize("preset", ["penstock", "mars", "thunderagent"])
def test_with_several_the_daemon_in_virtual_time_decides_as_the_simulator(preset: str) -> None:
    experiment = asked(preset, "3@2:1@1%25")
    memory = decisions(experiment)
    assert any("tenant t" in command.reason for _, command in memory.decisions)
    pipeline, decided, last_ns = DecisionPipeline(Controller(PRESETS[preset], rules_of(run_of(experiment)))), [], 0
    for now_ns, batch in groupby(memory.events, key=lambda pair: pair[0]):
        while (due_ns := max(last_ns, pipeline.controller.next_deadline_ns())) < now_ns:
            decided += [(due_ns, command) for command in pipeline.decide(due_ns)]
        for _, event in batch:
            pipeline.feed(encode_events(event.publisher, event.sequence, [(event.at_ns, event)]), now_ns)
        decided += [(now_ns, command) for command in pipeline.decide(now_ns)]
        last_ns = now_ns
    assert pipeline.rejected == 0
    assert decided[: len(memory.decisions)] == memory.decisions
    assert len(decided) <= len(memory.decisions) + 2, "the simulator ends with its last program"


def test_a_recorded_run_of_several_replays_to_the_same_commands(tmp_path: Path) -> None:
    budgets = ControlRules(tenancy=Tenancy(named={"t2": Tenant(program_turns=6, turns=60, window_s=600)}))
    experiment = asked("penstock", "3:1", budgets)
    config = Config(control=rules_of(run_of(experiment)), policies=PRESETS["penstock"])
    path = tmp_path / "run.jsonl"
    with LogWriter(path, Header(node="sim", preset="penstock", config=show(config))) as log:
        run = simulate(experiment, recorder=log)
    assert {program.tenant for program in run.programs if program.failed} == {"t2"}
    report = replay_log(path)
    assert report.differences == []
    assert report.commands > 25
