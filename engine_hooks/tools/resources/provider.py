"""What a kind of resource can do."""

from typing import Protocol


class ProviderError(Exception):
    """It could not be taken back, and why."""


class Provider(Protocol):
    """One kind of resource."""

    def size_bytes(self, handle: str) -> int:
        """What it takes: of memory for a process, of disk for the others; 0 for one that is gone."""

    def reclaim(self, handle: str) -> None:
        """Take it back. Raises ``ProviderError`` if it is still there."""
