"""``python -m tests.day``."""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does, for what tests have in common

from . import day

parser = argparse.ArgumentParser(prog="python -m tests.day", description=day.__doc__)
parser.add_argument("--programs", type=int, default=6, help="of each kind (6)")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--time-scale", type=float, default=10.0, help="how much faster than the wall (10)")
options = parser.parse_args()
with tempfile.TemporaryDirectory() as folder:
    days = [
        day.play(
            Path(folder, str(all_)), options.programs, options.seed, tells_all=all_, time_scale=options.time_scale
        )
        for all_ in (True, False)
    ]
sys.stdout.write(f"{day.table(days[1], days[0])}\n")
sys.exit(bool(days[1].given_away or any(kind.failures for kind in days[1].kinds.values())))
