"""Models of several KV cache groups: vLLM's own pool and scheduler without a model, and tiny real models.

More steps of the walk: ``PENSTOCK_TEST_GROUPS_STEPS=100000``. All models: ``vllm_groups/real_turns.py``.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from engine_server import ROOT
from engine_versions import on

pytestmark = on("vllm")
FOLDER = Path(__file__).parent / "vllm_groups"
STEPS = int(os.environ.get("PENSTOCK_TEST_GROUPS_STEPS", "10000"))
# Each kind of attention beside full, and all together; all shapes take fewer steps that overlap, as on a GPU.
MOST_STEPS = ("full", "five windows and full", "three states and full", "full, a window and states")
HAPPENS = ("pins", "returns to a pin", "discards", "preempted", "PinReclaimed")
ALL = (
    *MOST_STEPS,
    *("latent", "only a window", "full and a window", "full and states", "windows of other blocks"),
    *("states of larger blocks", "a window kept everywhere", "states at intervals", "a speculative head"),
)


def run(environment: Path, script: str, *arguments: object) -> list[dict[str, Any]]:
    """What a script says in vLLM's environment."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "PYTEST_"))}
    command = [environment / "bin" / "python", "-W", "ignore", FOLDER / script, *map(str, arguments)]
    done = subprocess.run(
        command, env=variables | {"PYTHONPATH": str(ROOT)}, cwd=FOLDER, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    ("shapes", "steps", "more"), [(MOST_STEPS, STEPS, ()), (ALL, STEPS // 10, ("--overlaps",))]
)
def test_no_block_is_lost_no_pinned_hit_is_shortened_and_no_turn_waits_for_ever(
    engine_env: Path, tiny_model: Path, shapes: tuple[str, ...], steps: int, more: tuple[str, ...]
) -> None:
    """Random turns, pins, discards, evictions, preemptions; what the script asserts is its own."""
    said = run(engine_env, "walk.py", *more, "--steps", steps, tiny_model, *shapes)
    assert [(one["shape"], one["steps"]) for one in said] == [(shape, steps) for shape in shapes]
    happened = {what: sum(one.get(what, 0) for one in said) for what in HAPPENS}
    assert min(happened.values()) > len(shapes), happened


def test_a_pinned_context_is_found_again_by_models_of_several_groups(engine_env: Path, tmp_path: Path) -> None:
    """Sliding windows and Mamba's states: vLLM finds nothing under this load, and what is pinned as if alone."""
    for said in run(engine_env, "real_turns.py", tmp_path, "gemma3", "granite"):
        assert len(said["groups"]) > 1
        assert sum(said["stock"]) == 0 < said["alone"]
        assert said["pinned"].count(said["alone"]) >= len(said["blocks of each pin"]) > 1
        assert said["same answers"]
        assert set(said["large turns answered"]) == {24}
        assert said["pins reclaimed for them"] > 0 == said["blocks lost"]
        assert said["hooks that failed"] == {}
