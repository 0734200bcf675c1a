"""Each key's meaning, unit and range in words, for ``config show --comments`` and the reference page.

Meanings come from the comments beside the fields and from ``words``. Ranges come from asking the constructors.
"""

import functools
import inspect
import re
from dataclasses import dataclass
from typing import Any

from controlplane.config.words import MEANINGS, UNIT_OF, UNITS
from controlplane.core.model.errors import allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A key in words. ``allowed`` is the range as an error would state it. Each part may be empty."""

    meaning: str
    unit: str
    allowed: str

    def __str__(self) -> str:
        return "; ".join(part for part in (self.meaning, self.unit, self.allowed) if part)


def describe(cls: type, path: str, name: str, default: Any) -> Description:
    """Describe the field ``name`` of ``cls``, whose keys' paths begin with ``path``."""
    meaning = MEANINGS.get(f"{path}{name}") or comments(cls).get(name, "")
    return Description(meaning=meaning, unit=unit(name), allowed=allowed(cls, name, default))


@functools.lru_cache(maxsize=64)
def comments(cls: type) -> dict[str, str]:
    """The comment at the end of each field's line, by field; empty if the source is not available."""
    try:
        source = inspect.getsource(cls)
    except OSError:
        return {}
    found = re.finditer(r"^    (\w+)(?::| =) [^#\n]*?#\s*(.+)$", source, flags=re.M)
    return {match[1]: match[2].strip() for match in found}


def unit(name: str) -> str:
    """The unit of a key, by its name or by the name's suffix; empty if it has none."""
    return UNIT_OF.get(name) or next((text for end, text in UNITS.items() if name.endswith(end)), "")
