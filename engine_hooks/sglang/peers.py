"""This scheduler's place among the ranks of its engine, and how they agree on something without the bus.

Under tensor parallelism each rank runs a scheduler of its own, and all of them must plan the same batches: else one
waits for ever in a collective operation that the others do not enter.
"""

from importlib import import_module
from typing import Any

_NO_RANK = (1 << 31) - 1


class Peers:
    """``rank`` of ``size``; rank 0 leads.

    :param group: theirs, for collective operations on the CPU.
    :param store: what all ranks of the engine found each other by; each call is a message to rank 0's process.
    """

    def __init__(self, rank: int, size: int, group: Any, store: Any) -> None:
        self.rank = rank
        self.size = size
        self._group = group
        self._store = store

    @classmethod
    def of(cls, scheduler: Any) -> "Peers | None":
        """Where this scheduler stands; None if it is the only one."""
        if int(getattr(scheduler.server_args, "tp_size", 1)) == 1:
            return None
        distributed: Any = import_module("torch.distributed")
        store = distributed.distributed_c10d._get_default_store()
        return cls(distributed.get_rank(), distributed.get_world_size(), scheduler.tp_cpu_group, store)

    @property
    def leads(self) -> bool:
        """Whether this one alone hears the daemon and is heard by it."""
        return self.rank == 0

    def join(self, as_what: str) -> None:
        """Tell rank 0 that this one is ready; all must say the same of themselves."""
        self._store.set(_place(self.rank), as_what)

    def absent(self) -> bool:
        """Whether a rank has not said yet that it takes part."""
        return not self._store.check([_place(rank) for rank in range(self.size)])

    def unlike(self) -> list[int]:
        """The ranks that said another thing than rank 0. None may be absent."""
        joined = [self._store.get(_place(rank)) for rank in range(self.size)]
        return [rank for rank, what in enumerate(joined) if what != joined[0]]

    def lowest_of(self, differs: bool) -> int | None:
        """The first rank that differs; None if none does. Every rank must ask at once."""
        torch: Any = import_module("torch")
        lowest = torch.tensor([self.rank if differs else _NO_RANK], dtype=torch.int32)
        torch.distributed.all_reduce(lowest, op=torch.distributed.ReduceOp.MIN, group=self._group)
        found = int(lowest.item())
        return None if found == _NO_RANK else found


def _place(rank: int) -> str:
    return f"penstock/rank/{rank}"
