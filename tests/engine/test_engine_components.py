"""Contexts that hold a window or states beside full attention's KV: pins, discards and evictions lose nothing.

CPUs run no model with states in SGLang: so the tree is asked without one.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from engine_server import ROOT
from engine_versions import ENGINES, on

pytestmark = on("sglang")
STEPS = int(os.environ.get("PENSTOCK_TEST_TREE_STEPS", "800"))


@pytest.mark.parametrize("engine_version", ENGINES, indirect=True)
@pytest.mark.parametrize("core", ["rust", "python"])
@pytest.mark.parametrize("components", ["full", "swa", "mamba", "swa,mamba"])
def test_what_is_pinned_stays_and_every_allocation_finds_room(
    engine_env: Path, tiny_model: Path, components: str, core: str
) -> None:
    """No turn fails for want of room, though pins alone may fill each pool; nothing leaks."""
    scene = Path(__file__).with_name("tree_scene.py")
    command = [engine_env / "bin" / "python", "-W", "ignore", scene, components, str(STEPS), "1", tiny_model]
    variables = {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    variables["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] = core
    done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    for what in ("hits", "CommandApplied", "Discard", "PinReclaimed"):
        assert seen.get(what, 0) > 0, f"{what} never happened: {seen}"
    assert seen["most pinned"] > 1
