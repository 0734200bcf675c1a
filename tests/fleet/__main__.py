"""``python -m tests.fleet``."""

import sys
from pathlib import Path

# As pytest does, for what tests have in common.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from support.soaks import command

from . import soak

sys.exit(
    command(
        soak.soak,
        prog="python -m tests.fleet",
        about=soak.__doc__,
        counted="kills",
        default=200,
        choices={"engines": (soak.DOUBLES, soak.REAL)},
    )
)
