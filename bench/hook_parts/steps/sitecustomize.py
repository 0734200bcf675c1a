"""On the path of an engine's Python: writes down every step of the scheduler, to ``STEP_LOG``.

A line is [began_ns, ended_ns, whether the engine was idle before, and for a prefill [[new, cached], ...], for a
decode step [sequences, tokens of context]]. It comes with Penstock's plugin, whose registration it wraps.
"""

import atexit
import json
import os
import time
from pathlib import Path
from typing import Any

_PATH = os.environ.get("STEP_LOG", "")
_BUFFERED = 50


def _install() -> None:
    from engine_hooks.sglang import plugin

    register = plugin.register

    def registered(*args: Any, **kwargs: Any) -> Any:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        result = register(*args, **kwargs)
        HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.run_batch", _step, HookType.AROUND)
        return result

    plugin.register = registered


_lines: list[str] = []


def _step(original: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    was_idle = bool(getattr(scheduler, "_sched_idled", False))
    if batch.forward_mode.is_extend():
        sizes: list[Any] = [list(pair) for pair in zip(batch.extend_lens, batch.prefix_lens, strict=True)]
    else:
        sizes = [len(batch.reqs), int(batch.seq_lens_cpu.sum())]
    began_ns = time.perf_counter_ns()
    result = original(scheduler, batch, *args, **kwargs)
    _lines.append(json.dumps([began_ns, time.perf_counter_ns(), was_idle, sizes]))
    if len(_lines) >= _BUFFERED:
        _flush()
    return result


def _flush() -> None:
    with Path(_PATH).open("a") as file:
        file.write("".join(f"{line}\n" for line in _lines))
    _lines.clear()


if _PATH:
    _install()
    atexit.register(_flush)
