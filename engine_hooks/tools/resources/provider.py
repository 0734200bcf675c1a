"""The protocol of a kind of resource."""

from typing import Protocol


class ProviderError(Exception):
    """A resource could not be reclaimed; the text says why."""


class Provider(Protocol):
    """Measures and reclaims one kind of resource."""

    def size_bytes(self, handle: str) -> int:
        """Bytes that it takes: memory for a process, disk for other kinds; 0 if it is gone."""

    def reclaim(self, handle: str) -> None:
        """Reclaim it. Raises ``ProviderError`` if it is still there."""
