"""What a tool is called with, within bounds (MARS §5): text that a system call takes, and an end to every command.

| variable | |
| --- | --- |
| ``PENSTOCK_TOOL_TIMEOUT_S`` | seconds for a call that names none itself; default: as the framework has it |
| ``PENSTOCK_TOOL_CLEAN`` | ``on``: NUL and halves of surrogate pairs are taken out of text; default ``off`` |

Both are off until they are asked for: an adapter that only watches changes nothing.
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
    """``timeout_s``: 0 leaves a call without a time as it is. ``clean``: whether text is cleaned."""

    timeout_s: float = 0.0
    clean: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """As the environment says; what cannot be read is warned of and left off."""
        return cls(
            timeout_s=seconds(environment, TIMEOUT_VARIABLE, 0.0),
            clean=is_switched_on(environment, CLEAN_VARIABLE, default="off"),
        )

    @property
    def on(self) -> bool:
        return self.clean or self.timeout_s > 0

    def cleaned(self, value: Any) -> Any:
        """The same value with clean text in it; the value itself where nothing was to be done."""
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
