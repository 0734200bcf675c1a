"""Keys and counts by their owner, so that what belongs to one is found without a look at what belongs to all."""

from collections import Counter
from collections.abc import Collection


class Index(dict[str, dict[str, None]]):
    """An owner's keys, in the order in which they came, as many as their table has. Who has none is not in it."""

    def add(self, owner: str, key: str) -> None:
        self.setdefault(owner, {})[key] = None

    def drop(self, owner: str, key: str) -> None:
        keys = self.get(owner)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del self[owner]

    def of(self, owner: str) -> Collection[str]:
        """Its keys. Who changes the index while he goes through them takes a list."""
        return self.get(owner, ())


class Tally(Counter[str]):
    """As a ``Counter``, but a name whose count is 0 is not remembered."""

    def add(self, name: str, by: int) -> None:
        self[name] += by
        if not self[name]:
            del self[name]
