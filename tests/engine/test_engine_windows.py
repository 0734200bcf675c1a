"""A model with sliding windows (gpt-oss's shape): pins, order and evictions in the running SGLang."""

import json
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import test_engine_policies
import test_engine_retention
from engine_scene import Bus
from engine_server import ROOT, STARTUP, EngineServer, Launch
from engine_versions import on

pytestmark = on("sglang")
_STANDIN = Path(__file__).parent / "sglang_windows"
_SHAPE = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "head_dim": 64,
    "intermediate_size": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 150_000.0},
    "swiglu_limit": 7.0,
    "attention_bias": True,
}
_ARGUMENTS = (
    "--attention-backend",
    "intel_amx",
    "--swa-full-tokens-ratio",
    "1.0",
    "--chunked-prefill-size",
    "1024",
)


class WithWindows(EngineServer):
    """SGLang with that shape in the place of the tests' model."""

    def _launch(self, model: Path) -> list[str]:
        made = shutil.copytree(model, self.folder / "model")
        config = json.loads((model / "config.json").read_text())
        (made / "config.json").write_text(json.dumps(config | _SHAPE))
        return super()._launch(made)

    def _own_variables(self, plugins: Sequence[str]) -> dict[str, str]:
        return {**super()._own_variables(plugins), "PYTHONPATH": f"{ROOT}:{STARTUP}:{_STANDIN}"}


@pytest.fixture(scope="module")
def windows(launch: Launch) -> Iterator[EngineServer]:
    yield from launch("windows", *_ARGUMENTS, server_class=WithWindows, plugins=("penstock_windows",))


@pytest.mark.parametrize(
    "as_without",
    [
        test_engine_retention.test_who_is_retained_hits_where_others_miss,
        test_engine_retention.test_pins_yield_to_a_turn_that_needs_the_room,
        test_engine_policies.test_a_small_turn_overtakes_a_large_one_that_finds_no_room,
        test_engine_policies.test_the_context_of_an_ended_program_goes_before_one_that_is_waited_for,
    ],
    ids=lambda test: test.__name__,
)
async def test_what_works_without_windows_works_with_them(
    as_without: Callable[[EngineServer, Bus], Awaitable[None]], windows: EngineServer, bus: Bus
) -> None:
    await as_without(windows, bus)
    assert "Use sliding window memory pool" in windows.log
    assert "the hook" not in windows.log
