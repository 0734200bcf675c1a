"""``python -m tests.kills``."""

import sys
from pathlib import Path

# As pytest does, for what tests have in common.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from support.real_engine import ENGINES
from support.soaks import command

from . import soak

sys.exit(
    command(
        soak.soak,
        prog="python -m tests.kills",
        about=soak.__doc__,
        counted="kills",
        default=1_000,
        choices={"engine": (soak.DOUBLE, *ENGINES)},
        numbers={"minutes": 0, "longest_s": soak.LONGEST_S},
    )
)
