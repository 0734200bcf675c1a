"""Host memory behind SGLang's KV pool (HiCache): what the plugin reads of it and moves to and from it.

Where SGLang's host memory is another ``problem`` says so and nothing is moved. Everything runs in the scheduler's
thread, and nothing waits for a copy to end.

Two dangers that the code below is shaped by. A node that is no evictable leaf must not be evicted, the core panics
and ends the scheduler: so only nodes that the engine itself lists as candidates are. And a batch may run before a
load has ended, on memory that is not written yet: so such a batch is told to wait for it, layer by layer, as for a
load of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine_hooks.engine.targets import Feature
from engine_hooks.engine.verify import verify
from engine_hooks.sglang.engine_view import ALL, EngineView
from engine_hooks.sglang.host_copies import DeviceNode, HostCopies
from engine_hooks.sglang.late_key import LateKey
from engine_hooks.sglang.targets import TARGETS
from engine_hooks.sglang.verify import report_problems, sglang_version

OFF = "host memory is off: start SGLang with --enable-hierarchical-cache"
NOTHING_HERE = "nothing of it is on the device"
_SPARE_TOKENS = 64  # left to each running request while a load holds its pages


@dataclass(frozen=True, slots=True)
class Move:
    """How far a move got: ``tokens`` have left the device. It may be tried again if it ``waits``."""

    tokens: int = 0
    waits: bool = False
    problem: str = ""


class HostTier:
    """HiCache of one scheduler. ``copies``: what it moved to the host, program by program."""

    def __init__(self, view: EngineView) -> None:
        self.copies = HostCopies()
        self._view = view
        self._lacks = ""
        self._loading: tuple[Any, int] = (None, -1)  # our last load: its node, and the engine's index of it
        if view.has_host_tier:
            missing = verify(target for target in TARGETS if target.feature is Feature.HOST)
            report_problems(missing)
            self._lacks = missing[0].message if missing else ""

    @property
    def problem(self) -> str:
        """Why nothing can be moved here; empty if it can."""
        tree = self._view.tree
        if not self._view.has_host_tier:
            return OFF
        if self._lacks:
            return f"moving to host memory is not supported with SGLang {sglang_version()}: {self._lacks}"
        if tree.cache_controller is None or tree.linker is not None:
            return "no host memory is attached to the tree"
        if tree.host_memory_mode != "cache":
            return "host memory is a buffer only here: --hicache-host-memory-mode cache would keep contexts in it"
        if others := [component.name.lower() for component in tree.tree_components[1:]]:
            return f"a context with {' and '.join(others)} is copied and loaded by the engine alone, in parts"
        if tree.tree_core.is_eagle:
            return "with EAGLE contexts are not moved to host memory yet"
        return ""

    def pool(self) -> tuple[int, int]:
        """Tokens that host memory holds at most, and those in use; zeros without it. Two counters, O(1)."""
        controller = getattr(self._view.tree, "cache_controller", None) if self._view.has_host_tier else None
        if controller is None:
            return 0, 0
        pool = controller.mem_pool_host
        total = int(getattr(pool, "logical_size", pool.size))
        return total, total - int(pool.available_size())

    # Device to host

    def demote(self, program_id: str, key: Any, others: Iterable[LateKey]) -> Move:
        """Move ``key``'s own part to host memory: what no key of ``others`` begins with too.

        A copy to the host is made first where there is none yet. While it runs the move waits: call again at a
        later step.
        """
        path = self._path(key)
        own = _own(key, others, path)
        if not own:
            return Move(problem="all of it is shared with other programs" if path else NOTHING_HERE)
        tree = self._view.tree
        if not all(tree.is_backuped(node.handle) for node in own):
            # Written through, a node's copy needs its parents'; written back, it stands alone.
            self._copy(own if tree.is_write_back else path)
            if not all(tree.is_backuped(node.handle) for node in own):
                return Move(problem="no room in host memory")
        return self._leave(own, program_id)

    def discard(self, key: Any, others: Iterable[LateKey]) -> Move:
        """Free ``key``'s own part on the device, copied to the host or not. Host copies fall to the host's LRU."""
        own = _own(key, others, self._path(key))
        return self._leave(own) if own else Move()

    def evict_tail(self, program_id: str, key: Any, most_tokens: int) -> int:
        """Free the end of ``key``'s path on the device, as far as it is copied to the host; the tokens freed.

        Written back, nothing is copied before it leaves: then the engine has to see to it.
        """
        if self.problem:
            return 0
        path, nodes, tokens = self._path(key), [], 0
        for node in reversed(path):
            if tokens >= most_tokens:
                break
            nodes.append(node)
            tokens += node.end - node.start
        freed_tokens = self._evict(nodes[::-1], program_id) if nodes else 0
        if freed_tokens and (freed_tokens < most_tokens or len(nodes) == len(path)):
            self.copies.mark_changed(program_id)  # nothing more of it will leave the device
        return freed_tokens

    def touch(self, key: Any) -> None:
        """Make what is cached of ``key``, wherever, the most recently used."""
        self._view.look_up(key)

    def _leave(self, own: Sequence[DeviceNode], program_id: str = "") -> Move:
        tokens = self._evict(own, program_id)
        if tokens < own[-1].end - own[0].start and self._view.tree.ongoing_write_through:
            return Move(tokens=tokens, waits=True)  # a copy that has not ended holds its node
        return Move(tokens=tokens, problem="" if tokens else "a running turn or a pin holds it")

    def _path(self, key: Any) -> list[DeviceNode]:
        """The nodes on the device that lie wholly on ``key``'s path, from the root; reads only, splits nothing.

        Each match with a longer beginning of the key tells where one more node ends.
        """
        core, page_tokens = self._view.tree.tree_core, self._view.page_tokens
        nodes: list[DeviceNode] = []
        most_tokens = core.match_full_device_prefix(key)[0]
        end = 0
        while end < most_tokens:
            matched, handle, node_end = core.match_full_device_prefix(key[: end + page_tokens])
            if matched <= end or node_end > most_tokens:
                break  # a node that goes on otherwise than the key is not this program's
            nodes.append(DeviceNode(int(handle), end, int(node_end)))
            end = int(node_end)
        return nodes

    def _copy(self, nodes: Sequence[DeviceNode]) -> None:
        """Begin to copy to the host what has no copy there, parents first. The engine locks it meanwhile."""
        from sglang.srt.mem_cache.unified_cache.cache_action import BackupKV

        tree = self._view.tree
        missing = [node.handle for node in nodes if not tree.is_backuped(node.handle)]
        tree._execute_and_commit_kv_backup(BackupKV(missing))
        tree.flush_pending_backups()

    def _evict(self, nodes: Sequence[DeviceNode], program_id: str) -> int:
        """Evict these nodes, from the last on, as far as the engine lists them as candidates; the tokens freed.

        One walk through the candidates: a node's parent is listed once the node has gone. Without ``program_id``
        nobody waits for them: what has no copy is dropped, and no copy is noted.
        """
        tree = self._view.tree
        full, tracker = tree.tree_components[0], dict.fromkeys(tree.tree_components, 0)
        wanted, copied = list(nodes), []
        tree.tree_core.evict_device_start(full, ALL)
        try:
            while wanted:
                handle, progress = tree._evict_device_next_node(full, tracker)
                if handle is None and not progress:
                    break
                if handle != wanted[-1].handle:
                    continue
                node, has_copy = wanted.pop(), tree.is_backuped(handle)
                # Without a copy and written back the engine would copy it first, and leaves it as it is.
                uncopied = tree._evict_device_leaf(handle, tracker) is not None
                if uncopied and (program_id or not tree._drop_subtree_no_host(handle, tracker)):
                    break
                if has_copy and program_id:
                    copied.append(node)
        finally:
            tree.tree_core.evict_device_end(full)
        self.copies.note(program_id, tree.tree_core, copied[::-1])
        return int(tracker[full])

    # Host to device

    @property
    def loads(self) -> bool:
        """Whether a load to the device is under way, whoever began it."""
        controller = self._view.tree.cache_controller
        return bool(self._view.tree.ongoing_load_back or controller.load_queue or controller.ack_load_queue)

    def load_back(self, key: Any) -> str:
        """Prepare to load what of ``key`` lies on the host alone; the reason if that cannot be done.

        ``start_loading`` starts all that were prepared. Neither may be called while the engine ``loads``: it keeps
        three loads at most and would end on a fourth.
        """
        tree, pool = self._view.tree, self._view.pool()
        found = self._view.look_up(key)
        tokens = int(found.host_hit_length)
        if tokens == 0:
            return "nothing of it lies on the host alone"
        spare_tokens = len(self._view.decoding()) * max(_SPARE_TOKENS, self._view.page_tokens)
        room_tokens = pool.free + pool.evictable - spare_tokens - self._view.promised_tokens()
        if tokens > room_tokens:
            return f"no room on the device: it needs {tokens} tokens and {max(0, room_tokens)} could be had"
        if not tree.load_back(found.best_match_node, mem_quota=room_tokens):
            return "no room on the device, or too little of it lies on the host"
        self._loading = (found.best_match_node, -1)
        return ""

    def start_loading(self) -> None:
        anchor, _ = self._loading
        self._loading = (anchor, int(self._view.tree.ready_to_load_host_cache()))

    def hold_back(self, batch: Any) -> None:
        """Make a prefill batch wait for our load, if one is under way and it has none of its own to wait for.

        Loads run in the order in which they began: one that waits for a later load has waited for ours.
        """
        anchor, index = self._loading
        if index < 0:
            return
        if anchor not in self._view.tree.ongoing_load_back:
            self._loading = (None, -1)
        elif batch.hicache_consumer_index < 0:
            batch.hicache_consumer_index = index

    def forget_all(self) -> None:
        self._loading = (None, -1)
        self.copies.forget_all()


def _own(key: Any, others: Iterable[LateKey], path: Sequence[DeviceNode]) -> Sequence[DeviceNode]:
    """The nodes at the end of ``path`` that no other key leads through."""
    shared = shared_tokens(key, others, [node.end for node in path])
    return [node for node in path if node.end > shared]


def shared_tokens(key: Any, others: Iterable[LateKey], ends: Sequence[int]) -> int:
    """The last of ``ends``, ascending, up to which another key begins as ``key`` does; 0 if none.

    No other key is made for it: with thousands of long contexts that would take the scheduler longer than its step.
    """
    shared = 0
    for other in others:
        while shared < len(ends) and other.begins_as(key, ends[shared]):
            shared += 1
    return ends[shared - 1] if shared else 0
