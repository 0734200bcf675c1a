"""A day in simulated time, with an experiment that a preset's bad afternoon ends."""

from dataclasses import replace
from functools import partial

from controlplane.core.experiment import LOSS, Switchback, SwitchbackRules
from controlplane.core.model.types import seconds
from controlplane.core.policies.admission.fixed import Fixed
from controlplane.core.policies.presets import PRESETS, STOCK, Preset
from controlplane.core.scheduling.controller import Controller
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.sim.switched import Switched
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.synthetic import synthesize

HOUR_S = 200.0  # of a day that is as much shorter as its programs are
NOON_S = 24 * HOUR_S


def test_a_preset_that_gets_worse_at_noon_is_given_up_the_same_day() -> None:
    good = PRESETS["penstock"]
    bad = replace(good, admission=Fixed(window=1))  # as after a wrong edit
    found = Switchback.begin(SwitchbackRules(slice_s=HOUR_S, washout_s=HOUR_S / 4), "day", 0)
    made: list[Controller] = []

    def preset_at(now_ns: int) -> Preset:
        return good if now_ns < seconds(NOON_S) else bad

    def make(preset: Preset, rules: ControlRules) -> Controller:
        made.append(Switched(preset, rules, experiment=found, preset_at=preset_at))
        return made[0]

    programs = round(0.08 * 48 * HOUR_S)
    simulate(
        Experiment(
            workload=Workload(trace="swe-bench"),
            trace=synthesize("swe-bench", programs=programs, seed=1),
            arrival=Poisson(0.08),
            hardware=Hardware(pool_tokens=60_000),
            preset=good,
        ),
        controller=partial(make),
    )
    state = found.state
    assert state.ended == LOSS
    assert NOON_S - 2 * HOUR_S <= state.since_ns / 1e9 < state.ended_ns / 1e9 < 2 * NOON_S
    assert made[0].preset is PRESETS[STOCK]
