"""Counts by name that come back to nothing: a name whose count is 0 is not remembered."""

from collections import Counter


class Tally(Counter[str]):
    """As a ``Counter``, and as long as there are names that count for something."""

    def add(self, name: str, by: int) -> None:
        """Count so many more."""
        self[name] += by
        if not self[name]:
            del self[name]
