"""Data-parallel ranks of a server: each is an engine of its own behind one gate, with a role and a pool."""

_RANK = "-dp"


def role_of_rank(role: str, rank: int | None) -> str:
    """The role of one rank of an engine; the engine's own where it has no ranks."""
    return role if rank is None else f"{role}{_RANK}{rank}"


def rank_of(place: str) -> int | None:
    """The rank that ``role_of_rank`` made the role of; None for another."""
    _, found, rank = place.rpartition(_RANK)
    return int(rank) if found and rank.isdecimal() else None


def places(node: str, role: str, ranks: int) -> tuple[str, ...]:
    """Where an engine's ranks are on the bus; none for an engine without."""
    return tuple(f"{node}/{role_of_rank(role, rank)}" for rank in range(ranks)) if ranks > 1 else ()
