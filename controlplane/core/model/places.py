"""Places: ``node/role``, where a publisher is.

Boots of one place follow one another; engines that serve together have places of their own (``node/engine-1``,
``node/engine-2``; docs/adr/0018).
"""

from functools import lru_cache

_RANK = "-dp"


@lru_cache(maxsize=4096)
def place_of(publisher: str) -> str:
    """``node/role`` of ``node/role/boot``; empty for another form."""
    return publisher.rpartition("/")[0]


SERVING_ROLES = ("engine", "gate")
"""The roles of those who serve turns."""


FLEET_GATE = "gate-fleet"
"""The role of a gate before engines on any node (docs/adr/0049)."""


def node_of(place: str) -> str:
    """``node`` of ``node/engine-30000``."""
    return place.rpartition("/")[0]


def kind_of(role: str) -> str:
    """``engine`` of ``engine-30000``: what a publisher is, whichever of several it is."""
    return role.partition("-")[0]


def server_of(place: str) -> str:
    """``node/30000`` of ``node/engine-30000-dp1``: the server that an engine or a gate is a part of.

    ``node/`` where the role names none: such a gate stands before every engine of its node.
    """
    node, _, role = place.rpartition("/")
    return f"{node}/{role.split('-', 2)[1] if '-' in role else ''}"


def role_of_rank(role: str, rank: int | None) -> str:
    """The role of one data-parallel rank of an engine; the engine's own where it has no ranks."""
    return role if rank is None else f"{role}{_RANK}{rank}"


def rank_of(place: str) -> int | None:
    """The rank that ``role_of_rank`` made the role of; None for another."""
    _, found, rank = place.rpartition(_RANK)
    return int(rank) if found and rank.isdecimal() else None


def places_of_ranks(node: str, role: str, ranks: int) -> tuple[str, ...]:
    """Where an engine's ranks are: each has a pool and pins of its own. None for an engine without."""
    return tuple(f"{node}/{role_of_rank(role, rank)}" for rank in range(ranks)) if ranks > 1 else ()


def stands_before(gate: str, engine: str) -> bool:
    """Whether turns that the gate at this place lets go may run on the engine at that one."""
    if gate.endswith(f"/{FLEET_GATE}"):
        return True
    server = server_of(gate)
    return server_of(engine).startswith(server) if server.endswith("/") else server_of(engine) == server


def serves(publisher: str) -> bool:
    """Whether it is an engine or a gate: one at its place, unlike agents' hooks."""
    return kind_of(place_of(publisher).rpartition("/")[2]) in SERVING_ROLES
