"""Hooks that cannot hurt: an exception inside a hook would end an engine's scheduler process, or an agent's run.

Each hook is made of a part before and a part after the host's own call. What either raises is counted and logged
once; after too many failures the hook does nothing any more and the host runs as if it were not there.
"""

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("penstock")

_MOST_FAILURES = 20


@dataclass(slots=True, kw_only=True)
class HookTime:
    """What the parts of one hook took, all calls together: by the wall, and of the thread's own CPU time."""

    calls: int = 0
    total_ns: int = 0
    cpu_ns: int = 0
    longest_ns: int = 0


class Guard:
    """Counts the failures of one plugin's hooks, by hook."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        self.times: dict[str, HookTime] = {}  # empty unless somebody measures

    def is_disabled(self, name: str) -> bool:
        """Whether the hook failed too often and does nothing any more."""
        return self.failures.get(name, 0) >= _MOST_FAILURES

    def run(self, name: str, part: Callable[..., Any], *args: Any) -> Any:
        """The part's result; None if it failed or has been given up."""
        if self.is_disabled(name):
            return None
        try:
            return part(*args)
        except Exception:
            count = self.failures[name] = self.failures.get(name, 0) + 1
            if count == 1:
                log.exception("penstock: the hook %s failed; all else goes on without it", name)
            elif count == _MOST_FAILURES:
                log.error("penstock: the hook %s failed %d times and is given up", name, count)
            return None

    def around(
        self,
        name: str,
        *,
        before: Callable[..., Any] | None = None,
        after: Callable[..., Any] | None = None,
    ) -> Callable[..., Any]:
        """An AROUND hook: ``before(*args)``, then ``after(result, saved, *args)``; ``saved`` is what before gave.

        Whatever they do, the host's function runs exactly once and its result is returned unchanged.
        """

        @functools.wraps(after or before or Guard.around)
        def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            saved = self.run(name, before, *args) if before is not None else None
            result = original(*args, **kwargs)
            if after is not None:
                self.run(name, after, result, saved, *args)
            return result

        return hook


class TimedGuard(Guard):
    """Measures the parts of each hook, too, which costs a microsecond a call."""

    def run(self, name: str, part: Callable[..., Any], *args: Any) -> Any:
        began_ns, cpu_began_ns = time.perf_counter_ns(), time.thread_time_ns()
        result = super().run(name, part, *args)
        cpu_ns, took_ns = time.thread_time_ns() - cpu_began_ns, time.perf_counter_ns() - began_ns
        spent = self.times.get(name)
        if spent is None:
            spent = self.times[name] = HookTime()
        spent.calls += 1
        spent.total_ns += took_ns
        spent.cpu_ns += cpu_ns
        spent.longest_ns = max(spent.longest_ns, took_ns)
        return result
