"""This scheduler's place among the ranks of its engine, and how they agree on something without the bus.

Under tensor parallelism each rank runs a scheduler of its own, and all of them must plan the same batches: else one
waits for ever in a collective operation that the others do not enter. Stages of a pipeline run one after another:
what they are to know of the daemon goes from each to the next, with the requests.
"""

from importlib import import_module
from typing import Any

_NOBODY = (1 << 31) - 1
_REPORT = "penstock/report"


class Peers:
    """``rank`` of ``size``; rank 0 leads. ``stage``: how many tensor-parallel ranks compare with one another.

    :param group: theirs, for collective operations on the CPU.
    :param store: what all ranks of the engine found each other by; each call is a message to rank 0's process.
    """

    def __init__(self, rank: int, size: int, stage: int, group: Any, store: Any) -> None:
        self.rank = rank
        self.size = size
        self.stage = stage
        self._group = group
        self._store = store

    @classmethod
    def of(cls, scheduler: Any) -> "Peers | None":
        """Where this scheduler stands; None if it is the only one."""
        arguments = scheduler.server_args
        stage = int(getattr(arguments, "tp_size", 1))
        if stage * int(getattr(arguments, "pp_size", 1)) == 1:
            return None
        distributed: Any = import_module("torch.distributed")
        store = distributed.distributed_c10d._get_default_store()
        rank, size = distributed.get_rank(), distributed.get_world_size()
        return cls(rank, size, stage, scheduler.tp_cpu_group, store)

    @property
    def leads(self) -> bool:
        """Whether this one alone hears the daemon and is heard by it."""
        return self.rank == 0

    @property
    def has_stages(self) -> bool:
        """Whether there are ranks that ``lowest_of`` does not ask."""
        return self.stage < self.size

    def take_part(self, as_what: str) -> None:
        """Tell rank 0 that this one is ready; all must say the same of themselves."""
        self._store.set(_place(self.rank), as_what)

    def absent(self) -> bool:
        """Whether a rank has not said yet that it takes part."""
        return not self._store.check([_place(rank) for rank in range(self.size)])

    def unlike(self) -> list[int]:
        """The ranks that said another thing than rank 0. None may be absent."""
        said = [self._store.get(_place(rank)) for rank in range(self.size)]
        return [rank for rank, what in enumerate(said) if what != said[0]]

    def lowest_of(self, differs: bool) -> int | None:
        """The first rank of this stage that differs; None if none does. Every rank of it must ask at once."""
        if self.stage == 1:
            return self.rank if differs else None
        torch: Any = import_module("torch")
        lowest = torch.tensor([self.rank if differs else _NOBODY], dtype=torch.int32)
        torch.distributed.all_reduce(lowest, op=torch.distributed.ReduceOp.MIN, group=self._group)
        found = int(lowest.item())
        return None if found == _NOBODY else found

    def report(self, what: str) -> None:
        """Tell rank 0, which hears no other stage."""
        self._store.set(_REPORT, what)

    def reported(self) -> str:
        """What another stage told; empty while there is nothing."""
        return self._store.get(_REPORT).decode() if self.has_stages and self._store.check([_REPORT]) else ""


def _place(rank: int) -> str:
    return f"penstock/rank/{rank}"
