"""Clients in the simulator that do not wait for ever."""

import pytest
from experiments import experiment

from controlplane.core.policies.presets import PRESETS
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.synthetic import synthesize


@pytest.mark.parametrize("preset", ["penstock", "mars-paper"])
def test_beyond_what_can_be_served_newcomers_are_refused_and_nobody_fails_that_has_begun(preset: str) -> None:
    crowd = {
        "preset": PRESETS[preset],
        "trace": synthesize("swe-bench", programs=400, seed=2),
        "arrival": Poisson(40.0),
        "pool_tokens": 30_000,
    }
    patient = simulate(experiment(**crowd)).summary
    assert (patient.programs_ended, patient.turns_refused) == (400, 0)
    hurried = simulate(experiment(**crowd, timeout_s=20.0)).summary
    assert hurried.turns_refused > 0
    assert hurried.programs_broken == 0
    assert hurried.programs_ended + hurried.programs_failed == 400
