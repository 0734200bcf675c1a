"""On the path of an engine's Python: SIGUSR2 switches the plugin's hooks off, and on again.

Switched off, a hook's parts do not run; the wrappers around the engine's functions stay.
"""

import signal
from typing import Any


def _nothing(guard: object, name: str, part: object, *args: object) -> None:
    return None


def _switch(signum: int, frame: Any) -> None:
    from engine_hooks.sglang.guard import Guard

    run = getattr(Guard, "switched_off", None)
    Guard.switched_off = Guard.run if run is None else None  # type: ignore[attr-defined]
    Guard.run = _nothing if run is None else run  # type: ignore[method-assign]


signal.signal(signal.SIGUSR2, _switch)
