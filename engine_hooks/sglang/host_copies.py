"""Whose contexts lie in host memory alone, so that it is seen when SGLang gives their copies up.

The tree cannot be asked without being changed: what is looked up there counts as used, and a handle of a node that
is gone must not be used at all. So the slot of host memory in which each node ends is noted when it has left the
device, and looked for among the slots that the tree frees. A node that is split keeps its end.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class DeviceNode(NamedTuple):
    """A node of the tree that is on the device, with its tokens: from ``start`` to ``end`` of a context's key."""

    handle: int
    start: int
    end: int


class HostCopies:
    """By program and by slot; in the scheduler's thread."""

    def __init__(self) -> None:
        self._by_slot: dict[int, tuple[str, int]] = {}  # whose node ends there, and how many tokens it has
        self._slots: dict[str, list[int]] = {}
        self._news: dict[str, None] = {}

    def note(self, program_id: str, core: Any, left: Sequence[DeviceNode]) -> None:
        """These nodes of the program's own part have left the device, and have a copy each; ascending."""
        if not left:
            return
        last = left[-1]
        slots = core.build_load_back_spec(last.handle)[0].host_indices  # of all of its path that left, to its end
        for node in left:
            at = len(slots) - 1 - (last.end - node.end)
            if at < 0:
                continue  # its copy is being loaded
            slot = int(slots[at])
            self._by_slot[slot] = (program_id, node.end - node.start)
            self._slots.setdefault(program_id, []).append(slot)

    def forget(self, program_id: str) -> None:
        """It is back on the device, or nobody waits for it."""
        for slot in self._slots.pop(program_id, ()):
            if self._by_slot.get(slot, ("", 0))[0] == program_id:
                del self._by_slot[slot]
        self._news.pop(program_id, None)

    def forget_all(self) -> None:
        self._by_slot.clear()
        self._slots.clear()
        self._news.clear()

    def freed(self, host_frees: Mapping[Any, Iterable[Any]]) -> None:
        """The tree frees these slots of host memory: tensors, by the kind of memory."""
        if not self._by_slot:
            return
        for values in host_frees.values():
            for slots in values:
                for slot in slots.tolist():
                    found = self._by_slot.pop(slot, None)
                    if found is not None:
                        self._news[found[0]] = None

    def mark_changed(self, program_id: str) -> None:
        """What is there of it is news, though nothing was freed."""
        self._news[program_id] = None

    def news(self) -> Iterator[tuple[str, int]]:
        """Programs of which something changed since this was asked last, and the tokens that are left of each."""
        if not self._news:
            return
        changed, self._news = self._news, {}
        for program_id in changed:
            found = (self._by_slot.get(slot) for slot in self._slots.get(program_id, ()))
            yield program_id, sum(each[1] for each in found if each is not None and each[0] == program_id)
