"""The benchmarks of the hooks still drive them as they are."""

import json
import subprocess
import sys
from pathlib import Path

import hook_cost_engine
import pytest
from hook_cost_engine import HOOKED

BENCH = Path(__file__).parents[3] / "bench" / "hook_cost.py"


def test_no_hook_fails_over_the_doubles() -> None:
    ran = subprocess.run([sys.executable, BENCH, "--rounds", "5", "--json"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["per_event_us"] > 0


@pytest.mark.parametrize("engine", HOOKED)
def test_an_empty_hook_is_one(engine: str) -> None:
    plain, wrapped = hook_cost_engine.empty_hook(engine)
    assert (plain(), wrapped()) == (None, None)
    assert HOOKED[engine].step in HOOKED[engine].events
