"""Each key in words: its meaning, unit and range, for ``config show --comments`` and the reference page.

Meanings come from the comments beside the fields and from ``words``, ranges from asking the constructors.
"""

import functools
import inspect
import re
from dataclasses import dataclass
from typing import Any

from controlplane.config.words import MEANINGS, UNIT_OF, UNITS
from controlplane.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One key. ``allowed``: as an error would state it, without the word; each may be empty."""

    meaning: str
    unit: str
    allowed: str

    def __str__(self) -> str:
        return "; ".join(part for part in (self.meaning, self.unit, self.allowed) if part)


def describe(cls: type, path: str, name: str, default: Any) -> Description:
    """The field ``name`` of ``cls``, whose keys' paths begin with ``path``."""
    meaning = MEANINGS.get(f"{path}{name}") or comments(cls).get(name, "")
    return Description(meaning=meaning, unit=unit(name), allowed=allowed(cls, name, default))


@functools.cache
def comments(cls: type) -> dict[str, str]:
    """The comment at the end of each field's line; none where the source is not at hand."""
    try:
        source = inspect.getsource(cls)
    except OSError:
        return {}
    found = re.finditer(r"^    (\w+)(?::| =) [^#\n]*?#\s*(.+)$", source, flags=re.M)
    return {match[1]: match[2].strip() for match in found}


def unit(name: str) -> str:
    """By the key's own name, or by its end."""
    return UNIT_OF.get(name) or next((text for end, text in UNITS.items() if name.endswith(end)), "")


def allowed(cls: Any, name: str, default: Any) -> str:
    """The range of a number, as the constructor states it when it refuses one far out of it."""
    if isinstance(default, bool) or not isinstance(default, int | float):
        return ""
    bounds = []
    for extreme in (-(10**18), 10**18):
        try:
            cls(**{name: type(default)(extreme)})
        except ConfigError as error:
            bounds.append(str(error).partition("expected ")[2].partition(", got")[0])
    ranges = [text for text in dict.fromkeys(bounds) if name in text.split()]
    return ranges[0] if ranges else ""
