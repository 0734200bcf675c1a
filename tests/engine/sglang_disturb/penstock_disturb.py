"""A plugin of SGLang for the engine tests: the last rank loses a pin once a file is there that a variable names."""

import os
import sys
from pathlib import Path
from typing import Any

VARIABLE = "PENSTOCK_DISTURB_FILE"


def register() -> None:
    from engine_hooks.sglang.ranked import Ranked

    file, step_done = Path(os.environ[VARIABLE]), Ranked.step_done

    def disturbed(ranked: Any, *args: Any) -> None:
        """A step has run: before the next one the ranks compare."""
        step_done(ranked, *args)
        lockstep = ranked._lockstep
        peers = lockstep._peers
        if peers.rank == peers.size - 1 and ranked._pins.programs and file.exists():
            file.unlink()
            ranked._pins.release(next(iter(ranked._pins.programs)))
            sys.stderr.write(f"disturbed after word {lockstep._compared}\n")

    Ranked.step_done = disturbed
