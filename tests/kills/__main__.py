"""``python -m tests.kills``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does, for what tests have in common

from support.soaks import command

from . import soak

sys.exit(command(soak.soak, prog="python -m tests.kills", about=soak.__doc__, counted="kills", default=1_000))
