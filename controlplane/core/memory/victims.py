"""Walk residents in an order and take blocks from each until enough are there."""

from collections.abc import Iterable

from controlplane.core.policies import ResidentView


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
