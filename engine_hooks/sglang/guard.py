"""Hooks that cannot hurt: an exception inside a hook would end SGLang's scheduler process.

Each hook is made of a part before and a part after the engine's own call. What either raises is counted and logged
once; after too many failures the hook does nothing any more and the engine runs as if it were not there.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("penstock")

_MOST_FAILURES = 20


class Guard:
    """Counts the failures of one plugin's hooks, by hook."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}

    def run(self, name: str, part: Callable[..., Any], *args: Any) -> Any:
        """The part's result; None if it failed or has been given up."""
        if self.failures.get(name, 0) >= _MOST_FAILURES:
            return None
        try:
            return part(*args)
        except Exception:
            count = self.failures[name] = self.failures.get(name, 0) + 1
            if count == 1:
                log.exception("penstock: the hook %s failed; the engine goes on without it", name)
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
        """An AROUND hook: ``before(*args)`` and ``after(result, kept, *args)``, where ``kept`` is what before gave.

        Whatever they do, the engine's function runs exactly once and its result is returned unchanged.
        """

        @functools.wraps(after or before or Guard.around)
        def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            kept = self.run(name, before, *args) if before is not None else None
            result = original(*args, **kwargs)
            if after is not None:
                self.run(name, after, result, kept, *args)
            return result

        return hook
