"""The parts under the engine model: decode batch, profiles, kernel, publisher."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from engine_operations import PROFILE, TOY
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.model.errors import ConfigError, LocalEventError
from controlplane.lab.sim.decode_batch import DecodeBatch
from controlplane.lab.sim.kernel import Kernel
from controlplane.lab.sim.profile import PROFILES, list_profiles, load_profile
from controlplane.lab.sim.turn_events import Publisher

TURNS = st.lists(st.tuples(st.integers(1, 5000), st.integers(2, 400)), min_size=1, max_size=12)


def batch_of(turns: list[tuple[int, int]], block_tokens: int = 16) -> DecodeBatch[str]:
    batch: DecodeBatch[str] = DecodeBatch(PROFILE, block_tokens)
    for i, (kv_tokens, output_tokens) in enumerate(turns):
        batch.join(kv_tokens, 1, output_tokens, f"turn {i}")
    return batch


@given(turns=TURNS, steps=st.integers(1, 300), block_tokens=st.sampled_from([1, 3, 16]))
def test_sums_over_steps_equal_the_steps(turns: list[tuple[int, int]], steps: int, block_tokens: int) -> None:
    batch = batch_of(turns, block_tokens)
    steps = min(steps, batch.steps_to_finish())
    duration_ps = batch.duration_ps(steps)
    growth = batch.growth_blocks(0, steps)
    single = batch_of(turns, block_tokens)
    single_ps = single_growth = 0
    for _ in range(steps):
        single_ps += single.duration_ps(1)
        single_growth += single.growth_blocks(0, 1)
        single.advance(1)
    assert (duration_ps, growth) == (single_ps, single_growth)
    assert batch.growth_blocks(0, steps // 2) + batch.growth_blocks(steps // 2, steps) == growth
    assert batch.steps_within(duration_ps) == steps
    assert batch.steps_within(duration_ps - 1) == steps - 1
    assert batch.growth_blocks(0, batch.steps_with(growth)) <= growth
    assert batch.growth_blocks(0, batch.steps_with(growth) + 1) > growth


def test_turns_finish_in_order_and_may_leave() -> None:
    batch = batch_of([(10, 3), (10, 5), (10, 3)])
    leaver = batch.join(7, 1, 4, "leaver")
    batch.leave(leaver)
    assert (batch.steps_to_finish(), batch.remaining_tokens, batch.context_tokens) == (2, 8, 30)
    assert batch.advance(2) == ["turn 0", "turn 2"]
    assert (batch.size, batch.remaining_tokens, batch.context_tokens) == (1, 2, 12)
    assert batch.advance(2) == ["turn 1"]


def test_every_built_in_profile_is_sound() -> None:
    profiles = list_profiles()
    assert {"b200-llama31-70b", "h100-llama31-70b-tp4", "h100-qwen3-coder-30b", "h100-gpt-oss-120b"} <= set(
        profiles
    )
    for name, source in profiles.items():
        profile = load_profile(name)
        assert profile.name == name
        assert profile.source == source
        costs = [profile.prefill_ns(start, 1024) for start in range(0, 200_000, 10_000)]
        for earlier, later in pairwise(costs):
            assert later >= earlier - 1, "a chunk costs more after more context, to a rounding"
        assert profile.prefill_ns(0, 3000) + profile.prefill_ns(3000, 5000) == profile.prefill_ns(0, 8000)
        assert 0 < profile.decode_ps(1, 1000) < profile.decode_ps(32, 32_000)
    speeds = [load_profile(name).decode_ps(8, 80_000) for name in ("b200", "h100", "rtx3090")]
    assert speeds == sorted(speeds)


def test_the_measured_profile_gives_back_the_calibration() -> None:
    data = json.loads((PROFILES / "h200-llama31-8b.json").read_text())
    profile = load_profile("h200-llama31-8b")
    for tokens, measured_s in data["prefill_s"].items():
        step_ns = profile.prefill_ns(0, int(tokens)) + profile.step_overhead_ns
        assert step_ns / 1e9 == pytest.approx(measured_s, rel=1e-6)
    for shape, measured_s in data["decode_s"].items():
        batch, context = map(int, shape.split("x"))
        middle = context + 64  # the calibration decodes 128 tokens
        assert profile.decode_ps(batch, batch * middle) / 1e12 == pytest.approx(measured_s, rel=0.03)


def profile_file(tmp_path: Path, of: str = "h100", **changes: Any) -> Path:
    """A built-in profile's file with those changes; None takes a field out."""
    data = json.loads((PROFILES / f"{of}.json").read_text()) | changes
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))
    return path


def test_of_a_mixture_of_experts_the_active_ones_compute_and_all_lie_in_memory(tmp_path: Path) -> None:
    dense = load_profile(profile_file(tmp_path))
    sparse = load_profile(profile_file(tmp_path, active_parameters=8.03e9 / 4))
    assert sparse.kv_pool_tokens == dense.kv_pool_tokens
    assert sparse.decode_ps(8, 80_000) == dense.decode_ps(8, 80_000)
    assert sparse.prefill_cumulative_ns[1] < dense.prefill_cumulative_ns[1] / 3
    assert load_profile(profile_file(tmp_path, active_parameters=0.0)) == dense


def test_a_tensor_parallel_group_shares_memory_and_work_and_pays_for_its_sums(tmp_path: Path) -> None:
    one, two = (load_profile(profile_file(tmp_path, devices=devices)) for devices in (1, 2))
    weights, use = 2 * 8.03e9, 0.88
    assert two.kv_pool_tokens == pytest.approx((2 * 80e9 * use - weights) / one.kv_bytes_per_token, abs=1)
    sums_s = 2 * 32 * 10e-6  # of 32 layers
    assert two.step_overhead_ns - one.step_overhead_ns == pytest.approx(1e9 * sums_s)
    assert two.decode_base_ps == pytest.approx(one.decode_base_ps / 2 + 1e12 * sums_s)
    assert one.decode_context_ps == pytest.approx(2 * two.decode_context_ps, abs=1)
    sent_s = 2 * 32 * 4096 * 2 / 450e9  # a token
    assert two.prefill_ns(0, 1024) == pytest.approx(one.prefill_ns(0, 1024) / 2 + 1024e9 * sent_s, rel=1e-3)


def test_quantized_weights_leave_room(tmp_path: Path) -> None:
    plain, quantized = (
        load_profile(profile_file(tmp_path, bytes_per_parameter=bytes_each)) for bytes_each in (0.0, 0.5)
    )
    assert quantized.kv_pool_tokens - plain.kv_pool_tokens == pytest.approx(
        1.5 * 8.03e9 / plain.kv_bytes_per_token, abs=1
    )


def test_only_a_named_publisher_counts() -> None:
    def numbers(publisher: Publisher) -> list[int]:
        return [publisher.stamp(7)["sequence"] for _ in range(2)]

    assert (numbers(Publisher("")), numbers(Publisher("n"))) == ([0, 0], [1, 2])
    assert TOY.source


MEASURED, ANALYTIC = "h200-llama31-8b", "h100"


@pytest.mark.parametrize(
    ("of", "changes", "message"),
    [
        (ANALYTIC, {"active_parameters": 9e9}, r"\$\.active_parameters: expected at most 8\.03e\+09, got 9e\+09"),
        (ANALYTIC, {"flops_per_s": None}, "missing required field `flops_per_s`"),
        (ANALYTIC, {"memory_use_ratio": 1.5}, r"`float` <= 1\.0 - at `\$\.memory_use_ratio`"),
        (ANALYTIC, {"memory_bytes": 1e9}, r"\$\.memory_bytes: expected room for .* of weights"),
        (ANALYTIC, {"speed": 1}, "unknown field `speed`"),
        (ANALYTIC, {"kind": "guessed"}, "Invalid value 'guessed' - at `\\$.kind`"),
        (MEASURED, {"prefill_s": {"1000": 0.1}}, "at least two lengths"),
        (MEASURED, {"prefill_s": {"1000": 0.1, "2000": 0.1}}, r"\$\.prefill_s\.2000: expected more than"),
        (MEASURED, {"prefill_s": {"x": 0.1, "2000": 0.1}}, "prompt lengths in tokens as keys"),
        (MEASURED, {"decode_base_us": 0}, r"> 0\.0 - at `\$\.decode_base_us"),
        (MEASURED, {"kv_bytes_per_token": -1}, "kv_bytes_per_token"),
    ],
)
def test_a_wrong_profile_file_is_explained(tmp_path: Path, of: str, changes: dict[str, Any], message: str) -> None:
    path = profile_file(tmp_path, of, **changes)
    with pytest.raises(ConfigError, match=message) as error:
        load_profile(path)
    assert str(error.value).startswith(str(path))
    with pytest.raises(ConfigError, match="no file 'h300'; built in: b200, b200-llama31-70b, h100, "):
        load_profile("h300")


def test_what_a_token_of_kv_takes_is_the_models_shape_and_may_be_unknown(tmp_path: Path) -> None:
    """Keys and values of 2 bytes each; Llama-3.1-8B: of 32 layers, 8 heads of 128 values (70B: 80 layers)."""
    other = {"70b": 80 * 8 * 128, "70b-tp4": 80 * 8 * 128, "30b": 48 * 4 * 128, "120b": 18 * 8 * 64}
    for name in list_profiles():
        values = next((each for model, each in other.items() if name.endswith(model)), 32 * 8 * 128)
        assert load_profile(name).kv_bytes_per_token == 2 * values * 2
    assert load_profile(profile_file(tmp_path, kv_heads=4)).kv_bytes_per_token == 2 * 32 * 4 * 128 * 2
    assert load_profile(profile_file(tmp_path, MEASURED, kv_bytes_per_token=None)).kv_bytes_per_token == 0


def test_the_kernel_runs_by_time_rank_and_order() -> None:
    kernel = Kernel()
    seen: list[str] = []
    kernel.schedule(20, 0, seen.append, "late")
    kernel.schedule(10, 1, seen.append, "rank 1")
    kernel.schedule(10, 0, seen.append, "first")
    kernel.schedule(10, 0, seen.append, "second")
    kernel.cancel(kernel.schedule(10, 0, seen.append, "cancelled"))
    kernel.schedule(15, 0, lambda: kernel.schedule(15, 0, seen.append, "same instant"))
    kernel.run(done=lambda: len(seen) == 3)
    assert (seen, kernel.now_ns) == (["first", "second", "rank 1"], 10)
    with pytest.raises(LocalEventError, match="before 10 ns"):
        kernel.schedule(9, 0, seen.append, "past")
    kernel.run()
    assert (seen[3:], kernel.now_ns, kernel.executed) == (["same instant", "late"], 20, 6)
