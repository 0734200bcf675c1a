"""A table of what has begun, in processes whose clients may never say that it has ended."""

from contextlib import suppress
from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_MOST_OPEN = 16_384


class Latest(dict[_Key, _Value]):
    """A dict of which the oldest entry makes room for one too many. Any thread may use it."""

    def __setitem__(self, key: _Key, value: _Value) -> None:
        super().__setitem__(key, value)
        while len(self) > _MOST_OPEN:
            with suppress(KeyError, RuntimeError):  # another thread makes room
                del self[next(iter(self))]

    def setdefault(self, key: _Key, default: _Value) -> _Value:
        """As a dict's, with a value."""
        if key not in self:
            self[key] = default
            return default
        return self.get(key, default)
