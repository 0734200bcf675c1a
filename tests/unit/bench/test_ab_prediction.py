"""The simulator beside rows of the A/B: several draws of each, and what is told of them."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from ab import prediction
from ab.kinds import VLLM
from ab.scenario import SMOKE
from ab_rows import row

from controlplane.core.model.errors import ConfigError
from controlplane.lab.sim.profile import load_profile
from controlplane.lab.workload.telemetry import Telemetry

PROFILE = load_profile(Path(__file__).parents[3] / "bench" / "results" / "validation-profile.json")
SCENARIO = replace(SMOKE, cpus=2)


def test_slower_steps_are_all_slower_alike() -> None:
    profile, slow = PROFILE, PROFILE.slowed(1.5)
    assert slow.prefill_ns(1000, 500) == pytest.approx(1.5 * profile.prefill_ns(1000, 500), rel=1e-6)
    assert slow.decode_ps(4, 8000, 10) == pytest.approx(1.5 * profile.decode_ps(4, 8000, 10), rel=1e-6)
    assert slow.step_overhead_ns == pytest.approx(1.5 * profile.step_overhead_ns)
    assert (slow.kv_pool_tokens, slow.max_context_tokens) == (profile.kv_pool_tokens, profile.max_context_tokens)


def test_a_run_is_predicted_by_the_mean_of_its_draws() -> None:
    assert prediction.slowings(3) == pytest.approx([0.98, 1.0, 1.02])
    rows = [row("mars", rate=1.0, toml='preset = "mars"')]
    several = prediction.predict(rows, SCENARIO, PROFILE, draws=3)
    slow, usual, fast = (
        prediction.predict(rows, SCENARIO, PROFILE.slowed(ratio), draws=1) for ratio in (0.98, 1, 1.02)
    )
    for one, *drawn in zip(several, slow, usual, fast, strict=True):
        jcts = [each.values["JCT mean (s)"][1] for each in drawn]
        assert one.values["JCT mean (s)"] == (25.0, pytest.approx(sum(jcts) / 3))
        assert 0 < one.deviations["JCT mean (s)"] < 0.05 * jcts[1]
        assert [each.deviations["JCT mean (s)"] for each in drawn] == [0, 0, 0]


def test_a_prediction_simulates_what_the_programs_report() -> None:
    for reported in Telemetry:
        asked = partial(prediction.spec_of, replace(SMOKE, telemetry=reported), PROFILE, rate=1.0, seed=1)
        assert asked(toml='preset = "mars"\n').workload.telemetry is reported
        assert asked(toml="").workload.telemetry is Telemetry.FULL, "stock takes no silence for anything"


def test_vllm_is_simulated_with_its_pages_and_not_with_its_priorities() -> None:
    scenario = SCENARIO.on(VLLM, "0")
    run = prediction.spec_of(scenario, PROFILE, rate=1.0, seed=1, toml="")
    assert run.hardware.block_tokens == 32
    rows = [row(name, scenario=scenario.digest) for name in ("stock", "priority")]
    assert [found.cell.system for found in prediction.chosen(rows, scenario)] == ["stock"]
    with pytest.raises(ConfigError, match="no run of scenario"):
        prediction.chosen([row()], scenario)
