"""What a comparison of pairs of engines may claim."""

import random
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from hook_parts.engines import HOOKED
from hook_parts.ratios import Estimate, of_pairs, of_steps

BENCH = Path(__file__).parents[3] / "bench"


def pairs(
    ratio: float, *, spread: float, between: float = 0.0, count: int = 8, segments: int = 8
) -> list[list[float]]:
    """Made-up ratios: ``spread`` within a pair, ``between`` what the processes of a pair differ by themselves."""
    rng = random.Random(1)
    offsets = [rng.gauss(0, between) for _ in range(count)]
    return [[rng.gauss(ratio + offset, spread) for _ in range(segments)] for offset in offsets]


def test_noise_around_nothing_is_no_difference() -> None:
    found = of_pairs(pairs(1.0, spread=0.01))
    assert found.low < 1.0 < found.high
    assert found.verdict(1.01) == "met"


def test_a_difference_beyond_the_budget_is_missed() -> None:
    assert of_pairs(pairs(1.03, spread=0.01)).verdict(1.01) == "missed"


def test_what_engines_differ_by_themselves_widens_the_interval() -> None:
    """Many segments of few engines are no proof: another pair may differ the other way."""
    alike = of_pairs(pairs(1.0, spread=0.005, segments=40, count=4))
    apart = of_pairs(pairs(1.0, spread=0.005, between=0.02, segments=40, count=4))
    assert apart.high - apart.low > 4 * (alike.high - alike.low)
    assert apart.verdict(1.01) == "not told from noise"


def test_one_segment_that_was_disturbed_moves_nothing() -> None:
    quiet = pairs(1.0, spread=0.002)
    disturbed = [[3.0, *quiet[0][1:]], *quiet[1:]]
    assert of_pairs(disturbed).value == pytest.approx(of_pairs(quiet).value, abs=0.001)


def steps(ratio: float, *, seed: int, count: int = 3000) -> tuple[list[int], list[int]]:
    """Made-up steps with and without: 30 ms, spread by a tenth, and one in twenty disturbed by other work."""
    rng = random.Random(seed)

    def one(mean_ns: float) -> int:
        disturbed = 3 if rng.random() < 0.05 else 1
        return round(rng.gauss(mean_ns, 0.1 * mean_ns) * disturbed)

    return [one(30e6 * ratio) for _ in range(count)], [one(30e6) for _ in range(count)]


@pytest.mark.parametrize("ratio", [1.0, 1.005, 1.03])
def test_steps_of_one_engine_tell_half_a_percent(ratio: float) -> None:
    found = of_steps([steps(ratio, seed=seed) for seed in range(4)])
    assert found.low < ratio < found.high
    assert found.high - found.low < 0.01
    assert found.verdict(1.02) == ("missed" if ratio > 1.02 else "met")


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.99, 1.01, "met"), (1.011, 1.02, "missed"), (0.99, 1.02, "not told from noise")]
)
def test_the_whole_interval_must_lie_on_one_side(low: float, high: float, verdict: str) -> None:
    assert Estimate(value=1.0, low=low, high=high).verdict(1.01) == verdict


@pytest.mark.parametrize("engine", HOOKED)
def test_an_empty_hook_is_one_and_costs_something(engine: str) -> None:
    plain, wrapped = HOOKED[engine].empty()
    assert (plain(), wrapped()) == (None, None)
    assert HOOKED[engine].step in HOOKED[engine].telling


def test_a_vllm_step_counts_where_all_of_the_batch_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SWITCH_BATCH", "0")  # nothing is installed in this process
    switch = runpy.run_path(str(BENCH / "hook_parts" / "switch" / "sitecustomize.py"))
    decodes_all = switch["_STEPS"]["step_begins"]
    decodes_all.__globals__["_BATCH"] = 2

    def attached(*output_tokens: int) -> SimpleNamespace:
        running = [SimpleNamespace(num_output_tokens=count) for count in output_tokens]
        return SimpleNamespace(scheduler=SimpleNamespace(running=running))

    assert decodes_all(attached(1, 5))
    assert not decodes_all(attached(0, 5)), "one is in its prefill"
    assert not decodes_all(attached(5))
