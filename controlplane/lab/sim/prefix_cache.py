"""Paged KV blocks and who holds them: a prefix tree of two levels, shared prefixes and programs' contexts.

Every block is free, in a node of the tree, or in a running turn's own part. A node that nothing uses is idle:
evictable, or pinned until a time. As in a radix tree a shared prefix is used for as long as a context that
begins with it is resident, so leaves go first. A context is a chain of pieces, as it was inserted: a chunk of a
prompt, its rest, a reply. Eviction frees whole pieces, the last one first, though less may be needed.

Where this is simpler than SGLang's radix tree: a program has one cached context, its last; a reply that parts
from it (a compacted history) frees the part that no longer matches instead of leaving it to age.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeVar

from controlplane.core.policies.protocols import Pinned, ResidentView
from controlplane.lab.sim.lower_tiers import LowerTiers

Level = Callable[[str, int], int]


def never(program_id: str) -> bool:
    """No pin outlasts its time."""
    return False


_MOST_KEYS = 65_536
_Value = TypeVar("_Value")


def put_bounded(table: dict[str, _Value], key: str, value: _Value) -> None:
    """Set the key of a table from which nobody takes programs that end; a long one loses its oldest key."""
    table.pop(key, None)
    table[key] = value
    if len(table) > _MOST_KEYS:
        del table[next(iter(table))]


_PREFIX_KEY = "\0prefix:"
_APART = "\0"  # between a program's name and its context's, where it has several


def context_key(program_id: str, context: object) -> str:
    """The key of one of a program's contexts; where it has but one, its name is the key."""
    return f"{program_id}{_APART}{context}"


def owner(key: str) -> str:
    """The program whose context that is."""
    return key.partition(_APART)[0]


@dataclass(slots=True, eq=False)
class Node:
    """Cached blocks of one program or of one shared prefix."""

    key: str
    parent: "Node | None" = None
    base_blocks: int = 0  # the blocks before its own, which the parent holds
    blocks: int = 0
    ends: list[int] = field(default_factory=list)  # of its pieces but the last, ascending
    refs: int = 0  # running turns and resident children
    last_used_ns: int = 0
    pinned_until_ns: int = 0  # 0: not pinned
    loading_until_ns: int = 0  # what was fetched from below comes until then
    arrived_ns: int = 0  # its program did


class _Idle:
    """A node as a memory policy sees it. Levels are worked out when asked for: most never are."""

    __slots__ = ("_level", "_node", "blocks", "label", "last_used_ns", "parked", "program_id")

    def __init__(self, node: Node, parked: bool, label: str, level: Level) -> None:
        self.program_id = node.key
        self.blocks = node.blocks
        self.last_used_ns = node.last_used_ns
        self.parked = parked
        self.label = label
        self._node = node
        self._level = level

    @property
    def level(self) -> int:
        return self._level(self.program_id, self._node.base_blocks + self.blocks)


class PrefixCache:
    """Block counts and idle nodes, least recently used first."""

    def __init__(self, total_blocks: int) -> None:
        self.total_blocks = total_blocks
        self.free_blocks = total_blocks
        self.evictable_blocks = 0  # idle and not pinned
        self.pinned_blocks = 0
        self._prefix_blocks = 0  # shared prefixes of what is pinned, once for each program
        self._nodes: dict[str, Node] = {}
        self._idle: dict[str, Node] = {}  # in order of last use
        self.latest: dict[str, str] = {}  # by program, of those with several contexts: which one commands are about
        self._pins: list[tuple[int, str]] = []  # heap of expiry times; stale entries are skipped
        self._overdue: dict[str, None] = {}  # pins past their time that hold while their program waits
        self.below: LowerTiers | None = None
        # Of contexts that went below: the group and size of their prefix.
        self.origins: dict[str, tuple[str, int]] = {}
        self.ttl_misses = 0  # pins that memory pressure ended before their time (AgentServeSim §3.5)

    def find(self, program_id: str) -> Node | None:
        """The program's node, if it has one."""
        return self._nodes.get(program_id)

    def find_prefix(self, group: str) -> Node | None:
        """The shared prefix's node, if it has one."""
        return self._nodes.get(_PREFIX_KEY + group)

    # -- use ------------------------------------------------------------------------------------------------

    def acquire(self, program_id: str, group: str, base_blocks: int, keep_blocks: int) -> Node | None:
        """Take the program's node into use, cut to its first ``keep_blocks`` unless another turn uses it.

        Returns None where another running turn uses it with a different shared prefix: then the turn runs
        without a cached context.
        """
        prefix_key = _PREFIX_KEY + group if base_blocks else ""
        node = self._nodes.get(program_id)
        if node is not None and (node.base_blocks, _parent_key(node)) != (base_blocks, prefix_key):
            if node.refs:
                return None
            self.cut(program_id, 0)
            node = None
        if node is None:
            node = self._nodes[program_id] = Node(program_id, None, base_blocks)
            if prefix_key:
                node.parent = self._nodes.get(prefix_key)
                if node.parent is None:
                    node.parent = self._nodes[prefix_key] = Node(prefix_key)
                self._use(node.parent)
        elif node.refs == 0 and node.blocks > keep_blocks:
            self._drop_tail(node, node.blocks - keep_blocks)
        self._use(node)
        return node

    def release(self, node: Node, now_ns: int) -> None:
        """A turn or a child stops using the node."""
        node.refs -= 1
        if node.refs:
            return
        if node.blocks:
            node.last_used_ns = now_ns
            self._idle[node.key] = node
            self.evictable_blocks += node.blocks
        else:
            self._forget(node, now_ns)

    @staticmethod
    def extend(node: Node, blocks: int, ends: Iterable[int] = ()) -> None:
        """Add ``blocks``, which are in use, to a node: pieces that end at ``ends``, and what is behind them."""
        total_blocks = node.blocks + blocks
        for end in (node.blocks, *ends):
            if (node.ends[-1] if node.ends else 0) < end < total_blocks:
                node.ends.append(end)
        node.blocks = total_blocks

    def _use(self, node: Node) -> None:
        if node.refs == 0 and self._idle.pop(node.key, None) is not None:
            if node.pinned_until_ns:
                self.pinned_blocks -= node.blocks
                self._unpinned(node)
            else:
                self.evictable_blocks -= node.blocks
        node.refs += 1

    def _drop_tail(self, node: Node, blocks: int) -> None:
        """Free the last blocks of an idle node."""
        node.blocks -= blocks
        del node.ends[bisect_left(node.ends, node.blocks) :]
        self.free_blocks += blocks
        if node.pinned_until_ns:
            self.pinned_blocks -= blocks
        else:
            self.evictable_blocks -= blocks

    def _forget(self, node: Node, now_ns: int) -> None:
        del self._nodes[node.key]
        if node.parent is not None:
            self.release(node.parent, now_ns)

    def hand_over(self, key: str, to: str) -> bool:
        """Another program continues an idle context: it is that one's from now on. False: it is not idle here."""
        node = self._idle.get(key)
        if node is None:
            return False
        self.unpin(key)
        del self._idle[key], self._nodes[key]
        node.key = to
        self._idle[to] = self._nodes[to] = node
        return True

    # -- eviction -------------------------------------------------------------------------------------------

    def candidates(self, parked: Container[str], labels: Mapping[str, str], level: Level) -> Iterator[ResidentView]:
        """Idle nodes that are not pinned, least recently used first.

        ``parked`` are the programs that nobody waits for; ``level(key, blocks)`` tells a program's.
        """
        for node in self._idle.values():
            if not node.pinned_until_ns:
                program_id = owner(node.key)
                yield _Idle(node, program_id in parked, labels.get(program_id, ""), level)

    def evict(self, key: str, blocks: int) -> int:
        """Free ``blocks`` or all from the tail of an idle node, pinned or not, by whole pieces. Returns how many.

        A copy goes to the tiers below, if there are any.
        """
        key = self.latest.get(key, key)
        node = self._idle.get(key)
        if node is None or blocks <= 0:
            return 0
        if self.below is not None and not key.startswith(_PREFIX_KEY):
            self.below.keep(key, node.blocks)
            self.below.news[key] = None
            self.origins[key] = (_parent_key(node).removeprefix(_PREFIX_KEY), node.base_blocks)
        retained = bisect_right(node.ends, node.blocks - blocks)
        return self._free(node, node.blocks - (node.ends[retained - 1] if retained else 0))

    def _free(self, node: Node, blocks: int) -> int:
        """From the tail of an idle node."""
        self._drop_tail(node, blocks)
        if node.blocks == 0:
            del self._idle[node.key]
            self._unpinned(node)
            self._forget(node, node.last_used_ns)
        return blocks

    def cut(self, program_id: str, keep_blocks: int) -> int:
        """Free an idle context beyond its first blocks, its shared prefix counted; copies below, too.

        Returns the blocks freed here.
        """
        program_id = self.latest.get(program_id, program_id)
        node = self._idle.get(program_id)
        own_blocks = max(0, keep_blocks - (node.base_blocks if node is not None else 0))
        if self.below is not None:
            self.below.cut(program_id, own_blocks)
        return 0 if node is None else self._free(node, max(0, node.blocks - own_blocks))

    def flush(self) -> None:
        """Free every idle context, pinned or not, with prefixes that nothing else uses, and all copies below."""
        while self._idle:
            node = next(iter(self._idle.values()))
            self.unpin(node.key)
            self._free(node, node.blocks)
        if self.below is not None:
            self.below.clear()

    def evict_oldest(self, blocks: int) -> int:
        """Free ``blocks`` from the least recently used nodes. Returns how many were there to free."""
        missing = blocks
        while missing > 0:
            key = next((node.key for node in self._idle.values() if not node.pinned_until_ns), None)
            if key is None:
                break
            missing -= self.evict(key, missing)
        return blocks - missing

    # -- pins -----------------------------------------------------------------------------------------------

    def pin(self, program_id: str, until_ns: int, budget_blocks: int) -> str:
        """Make an idle context unevictable until a time; the reason if that cannot be done: then it is unpinned.

        Pins may take ``budget_blocks`` together.
        """
        program_id = self.latest.get(program_id, program_id)
        node = self._idle.get(program_id)
        if node is None:
            return "nothing of it is cached, or it is in use"
        self.unpin(program_id)
        if self.budgeted_blocks + node.base_blocks + node.blocks > budget_blocks:
            return "the pin budget is spent"
        self.evictable_blocks -= node.blocks
        self.pinned_blocks += node.blocks
        self._prefix_blocks += node.base_blocks
        node.pinned_until_ns = until_ns
        self._overdue.pop(program_id, None)
        heappush(self._pins, (until_ns, program_id))
        return ""

    @property
    def budgeted_blocks(self) -> int:
        """What is pinned. A shared prefix counts once for each program that pins it."""
        return self.pinned_blocks + self._prefix_blocks

    def unpin(self, program_id: str) -> bool:
        """Make a pinned context evictable again. False: it was not pinned."""
        node = self._idle.get(self.latest.get(program_id, program_id))
        if node is None or not node.pinned_until_ns:
            return False
        self._unpinned(node)
        self.pinned_blocks -= node.blocks
        self.evictable_blocks += node.blocks
        return True

    def _unpinned(self, node: Node) -> None:
        if node.pinned_until_ns:
            node.pinned_until_ns = 0
            self._prefix_blocks -= node.base_blocks

    def next_expiry_ns(self) -> int | None:
        """When the first pin ends that has not outlasted its time yet."""
        pins = self._pins
        while pins:
            until_ns, program_id = pins[0]
            node = self._idle.get(program_id)
            if node is not None and node.pinned_until_ns == until_ns and program_id not in self._overdue:
                return until_ns
            heappop(pins)
        return None

    def expire_pins(self, now_ns: int, outlasts: Callable[[str], bool] = never) -> bool:
        """Unpin what has expired, unless the program's pin outlasts its time. Returns whether any was unpinned."""
        expired = False
        while (until_ns := self.next_expiry_ns()) is not None and until_ns <= now_ns:
            program_id = heappop(self._pins)[1]
            if outlasts(owner(program_id)):
                self._overdue[program_id] = None
            else:
                expired |= self.unpin(program_id)
        for program_id in [name for name in self._overdue if not self._is_overdue(name, now_ns, outlasts)]:
            del self._overdue[program_id]
            if self._has_expired(program_id, now_ns):
                expired |= self.unpin(program_id)
        return expired

    def _is_overdue(self, program_id: str, now_ns: int, outlasts: Callable[[str], bool]) -> bool:
        return self._has_expired(program_id, now_ns) and outlasts(owner(program_id))

    def _has_expired(self, program_id: str, now_ns: int) -> bool:
        node = self._idle.get(program_id)
        return node is not None and 0 < node.pinned_until_ns <= now_ns

    def is_pinned(self, program_id: str) -> bool:
        node = self._nodes.get(self.latest.get(program_id, program_id))
        return node is not None and node.pinned_until_ns > 0

    def pinned(self) -> list[Pinned]:
        """What is pinned, least recently used first."""
        return [
            Pinned(
                program_id=node.key,
                blocks=node.blocks,
                until_ns=node.pinned_until_ns,
                program_arrived_at_ns=node.arrived_ns,
            )
            for node in self._idle.values()
            if node.pinned_until_ns
        ]

    def pins(self) -> dict[str, int]:
        """Pinned programs, and when each pin ends."""
        return {owner(node.key): node.pinned_until_ns for node in self._idle.values() if node.pinned_until_ns}


def _parent_key(node: Node) -> str:
    return node.parent.key if node.parent is not None else ""
