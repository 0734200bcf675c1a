"""Bounds on a tool's arguments (MARS §5): text that system calls accept, and a timeout for every command.

| variable | meaning |
| --- | --- |
| ``PENSTOCK_TOOL_TIMEOUT_S`` | timeout in seconds of a call that names none; default: the framework's |
| ``PENSTOCK_TOOL_CLEAN`` | ``on`` removes NUL and lone halves of surrogate pairs from text; default ``off`` |

Both are off by default: an adapter that only watches changes nothing.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from engine_hooks.tools.shared import is_switched_on, seconds

TIMEOUT_VARIABLE = "PENSTOCK_TOOL_TIMEOUT_S"
CLEAN_VARIABLE = "PENSTOCK_TOOL_CLEAN"
_NO_SYSTEM_CALL_TAKES = {0: None} | dict.fromkeys(range(0xD800, 0xE000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hygiene:
    """What to do to a call. ``timeout_s`` 0 adds no timeout; ``clean`` removes unusable characters from text."""

    timeout_s: float = 0.0
    clean: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the settings from the environment; a value that cannot be read is logged and ignored."""
        return cls(
            timeout_s=seconds(environment, TIMEOUT_VARIABLE, 0.0),
            clean=is_switched_on(environment, CLEAN_VARIABLE, default="off"),
        )

    @property
    def on(self) -> bool:
        return self.clean or self.timeout_s > 0

    def cleaned(self, value: Any) -> Any:
        """The value with clean text in it; the value itself if nothing had to change."""
        if not self.clean:
            return value
        if isinstance(value, str):
            text = value.translate(_NO_SYSTEM_CALL_TAKES)
            return text if text != value else value
        if isinstance(value, list):
            items = [self.cleaned(item) for item in value]
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        if isinstance(value, dict):
            fields = {self.cleaned(name): self.cleaned(item) for name, item in value.items()}
            same = list(fields) == list(value) and all(fields[name] is value[name] for name in fields)
            return value if same else fields
        return value
