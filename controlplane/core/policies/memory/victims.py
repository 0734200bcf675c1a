"""What memory policies have in common: pins that yield, and victims that are taken in an order."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from controlplane.core.policies.protocols import Fit, MemoryPolicy, Pinned, ResidentView

PIN_BUDGET_RATIO = 0.5
"""Of the pool: what pins may take together where they yield to whoever waits (docs/adr/0004)."""


class YieldingPins(MemoryPolicy):
    """Pins go as soon as a call needs their room, the one that ends first in front. Chunks keep their size."""

    @property
    def shrinks(self) -> bool:
        return False

    @property
    def pins_outlast_waits(self) -> bool:
        return False

    @property
    def pin_budget_ratio(self) -> float:
        return PIN_BUDGET_RATIO

    @property
    def retracts_by_level(self) -> bool:
        return False

    def unpin(self, pins: Sequence[Pinned], shortfall_blocks: int, stuck: bool) -> Sequence[str]:
        return unpin_until(pins, shortfall_blocks, key=lambda pin: pin.until_ns)

    def host_rank(self, label: str, parked: bool) -> int:
        return 0


def take(residents: Iterable[ResidentView], missing_blocks: int) -> tuple[list[tuple[str, int]], int]:
    """Victims as (program_id, blocks), and the blocks that are still missing (0: enough). Reads no further."""
    victims: list[tuple[str, int]] = []
    if missing_blocks <= 0:
        return victims, 0
    for resident in residents:
        blocks = min(missing_blocks, resident.blocks)
        victims.append((resident.program_id, blocks))
        missing_blocks -= blocks
        if missing_blocks <= 0:
            break
    return victims, missing_blocks


def all_or_nothing(chunk_blocks: int, shortfall_blocks: int, candidates: Iterable[ResidentView]) -> Fit:
    """The whole chunk, with the victims that it takes; nothing where they do not do."""
    victims, missing = take(candidates, shortfall_blocks)
    if missing > 0:
        return Fit(chunk_blocks=0, victims=())
    return Fit(chunk_blocks=chunk_blocks, victims=victims)


def unpin_until(pins: Iterable[Pinned], shortfall_blocks: int, key: Callable[[Pinned], Any]) -> list[str]:
    """Programs by ascending ``key``, until their pins hold ``shortfall_blocks`` together."""
    names = []
    for pin in sorted(pins, key=lambda pin: (key(pin), pin.program_id)):
        if shortfall_blocks <= 0:
            break
        names.append(pin.program_id)
        shortfall_blocks -= pin.blocks
    return names
