"""Data-parallel ranks: each is an engine of its own behind one gate, with a role, a pool and pins of its own."""

from controlplane.core.model.events import rank_of, role_of_rank

__all__ = ["places", "rank_of", "role_of_rank"]


def places(node: str, role: str, ranks: int) -> tuple[str, ...]:
    """Where an engine's ranks are on the bus; none for an engine without."""
    return tuple(f"{node}/{role_of_rank(role, rank)}" for rank in range(ranks)) if ranks > 1 else ()
