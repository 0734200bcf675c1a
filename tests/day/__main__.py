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
parser.add_argument("--time-scale", type=float, default=10.0, help="of the double: faster than the wall (10)")
parser.add_argument("--arrive", type=float, default=4.0, help="minutes in which they arrive (4)")
parser.add_argument("--engine", choices=["double", "sglang", "vllm"], default="double")
options = parser.parse_args()
scale = options.time_scale if options.engine == "double" else 1.0
with tempfile.TemporaryDirectory() as folder:
    control, real = day.play(
        Path(folder),
        options.programs,
        options.seed,
        time_scale=scale,
        arrive_s=60 * options.arrive,
        engine=options.engine,
    )
sys.stdout.write(f"{day.table(real, control)}\n")
sys.exit(bool(real.given_away or any(kind.failures for kind in real.kinds.values())))
