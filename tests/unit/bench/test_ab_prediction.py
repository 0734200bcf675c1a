"""The simulator beside rows of the A/B: several draws of each, and what is told of them."""

from dataclasses import replace
from pathlib import Path

import pytest
from ab import prediction
from ab.kinds import VLLM
from ab.prediction import Prediction
from ab.scenario import SMOKE
from ab_rows import cell, row

from controlplane.core.errors import ConfigError
from controlplane.lab.sim.profile import load_profile

PROFILE = load_profile(Path(__file__).parents[3] / "bench" / "results" / "validation-profile.json")
SCENARIO = replace(SMOKE, cpus=2)


def predicted(real_s: float, predicted_s: float, system: str) -> Prediction:
    return Prediction(
        cell=cell(system), values={"JCT mean (s)": (real_s, predicted_s)}, deviations={"JCT mean (s)": 1.0}
    )


def test_slower_steps_are_all_slower_alike() -> None:
    profile, slow = PROFILE, PROFILE.slowed(1.5)
    assert slow.prefill_ns(1000, 500) == pytest.approx(1.5 * profile.prefill_ns(1000, 500), rel=1e-6)
    assert slow.decode_ps(4, 8000, 10) == pytest.approx(1.5 * profile.decode_ps(4, 8000, 10), rel=1e-6)
    assert slow.step_overhead_ns == pytest.approx(1.5 * profile.step_overhead_ns)
    assert (slow.kv_pool_tokens, slow.max_context_tokens) == (profile.kv_pool_tokens, profile.max_context_tokens)


def test_draws_lie_evenly_around_the_profile() -> None:
    assert prediction.slowings(1) == [1.0]
    assert prediction.slowings(3) == pytest.approx([0.98, 1.0, 1.02])


def test_a_run_is_predicted_by_the_mean_of_its_draws() -> None:
    rows = [row("stock", rate=1.0), row("mars", rate=1.0, toml='preset = "mars"')]
    several = prediction.predict(rows, SCENARIO, PROFILE, draws=3)
    slow, usual, fast = (
        prediction.predict(rows, SCENARIO, PROFILE.slowed(ratio), draws=1) for ratio in (0.98, 1, 1.02)
    )
    for one, *drawn in zip(several, slow, usual, fast, strict=True):
        jcts = [each.values["JCT mean (s)"][1] for each in drawn]
        assert one.values["JCT mean (s)"] == (25.0, pytest.approx(sum(jcts) / 3))
        assert 0 < one.deviations["JCT mean (s)"] < 0.05 * jcts[1]
        assert [each.deviations["JCT mean (s)"] for each in drawn] == [0, 0, 0]


def test_pairs_that_differ_by_less_than_the_error_are_not_ranked() -> None:
    rows = [predicted(100, 110, "stock"), predicted(105, 100, "static-6"), predicted(50, 48, "mars")]
    assert prediction.ranking(rows) == (2, 2, [])
    turned = [predicted(100, 95, "stock"), predicted(80, 98, "mars"), predicted(40, 41, "static-6")]
    same, pairs, told = prediction.ranking(turned)
    assert (same, pairs) == (2, 3)
    assert "stock and mars at 0.15/s, seed 1" in told[0]


def test_vllm_is_simulated_with_its_pages_and_not_with_its_priorities() -> None:
    scenario = SCENARIO.on(VLLM, "0")
    run = prediction.spec_of(scenario, PROFILE, rate=1.0, seed=1, toml="")
    assert run.hardware.block_tokens == 32
    rows = [row(name, scenario=scenario.digest) for name in ("stock", "priority")]
    assert [found.cell.system for found in prediction.chosen(rows, scenario)] == ["stock"]


def test_no_run_of_the_scenario_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no run of scenario"):
        prediction.chosen([row()], SCENARIO)
