"""The benchmark over doubles still drives the hooks as they are."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[3] / "bench" / "hook_cost.py"


def test_no_hook_fails_over_the_doubles() -> None:
    ran = subprocess.run([sys.executable, BENCH, "--rounds", "5", "--json"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["per_event_us"] > 0
