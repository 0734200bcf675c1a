"""On the path of an engine's Python: switches the plugin's hooks off and on by chance, step by step.

What a step takes, by the wall and in CPU time of the scheduler's thread, is kept, and written to
``HOOK_SWITCH_FILE`` at SIGUSR2. Only steps that decode a whole batch count and are ever switched off. Off, a hook's
parts do not run; the wrappers around the engine's functions stay.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_BATCH = int(os.environ.get("HOOK_SWITCH_BATCH", "0"))


def _sglang_decodes_all(scheduler: Any) -> bool:
    return len(scheduler.running_batch.reqs) == _BATCH and not scheduler.waiting_queue


def _vllm_decodes_all(attached: Any) -> bool:
    running = attached.scheduler.running
    return len(running) == _BATCH and all(request.num_output_tokens for request in running)


_STEPS = {"get_next_batch_to_run": _sglang_decodes_all, "step_begins": _vllm_decodes_all}


class Switch:
    """Stands before the guard: every part of every hook runs through it."""

    def __init__(self) -> None:
        self.took_ns: list[tuple[bool, int, int]] = []  # whether the hooks were on, wall, CPU
        self._random = random.Random(1)
        self._on = True
        self._whole = False
        self._began_ns = (0, 0)

    def install(self) -> None:
        from engine_hooks.guard import Guard

        run = Guard.run

        def switched(guard: Guard, name: str, part: Any, *args: Any) -> Any:
            if name in _STEPS:
                self.step(_STEPS[name], args[0])
            return run(guard, name, part, *args) if self._on else None

        Guard.run = switched  # type: ignore[method-assign]

    def step(self, decodes_all: Callable[[Any], bool], told: Any) -> None:
        """A step begins, and the one before has ended."""
        wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        whole = decodes_all(told)
        if self._whole and whole:
            self.took_ns.append((self._on, wall_ns - self._began_ns[0], cpu_ns - self._began_ns[1]))
        self._whole = whole
        self._on = not whole or self._random.random() < 0.5
        self._began_ns = (time.perf_counter_ns(), time.thread_time_ns())

    def write(self, signum: int, frame: Any) -> None:
        draft = Path(os.environ["HOOK_SWITCH_FILE"] + ".tmp")
        draft.write_text(json.dumps(self.took_ns))
        draft.replace(os.environ["HOOK_SWITCH_FILE"])


if _BATCH:
    switch = Switch()
    switch.install()
    signal.signal(signal.SIGUSR2, switch.write)
