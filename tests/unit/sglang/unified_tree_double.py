"""A double of SGLang's unified radix tree with HiCache, of its scheduler, and of a prefill batch.

It keeps the rules that the plugin must not break: only a leaf of the device that nothing locks may be evicted, and
only while it is listed; a copy to the host locks its node until the engine's next look; a fourth load is the end.
"""

from array import array
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from sglang_double import ComponentType, SglangDouble

from engine_hooks.sglang.late_key import LateKey

_MEM_CACHE = "sglang.srt.mem_cache"


class Core(BaseException):
    """The Rust core's panic: no ``except Exception`` catches it."""


class KeyDouble:
    """SGLang's ``RadixKey``."""

    def __init__(self, token_ids: Sequence[int], extra_key: str | None = None) -> None:
        self.token_ids = list(token_ids)
        self.extra_key = extra_key
        self.cache_salt: str | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    def __getitem__(self, part: slice) -> "KeyDouble":
        return KeyDouble(self.token_ids[part], self.extra_key)

    @property
    def late(self) -> LateKey:
        """As the plugin keeps it: the last token but one is the output's first."""
        prompt, output = self.token_ids[:-2], self.token_ids[-2:]
        return LateKey(prompt=prompt, output=output, page_tokens=1, extra_key=self.extra_key)


class NodeDouble:
    """A node: its tokens, and where their KV is."""

    def __init__(self, handle: int, parent: "NodeDouble | None", tokens: list[int]) -> None:
        self.handle = handle
        self.parent = parent
        self.tokens = tokens
        self.children: list[NodeDouble] = []
        self.on_device = True
        self.on_host = False
        self.slots = array("q", range(1000 * handle, 1000 * handle + len(tokens)))  # of its copy on the host
        self.locks = 0

    def path(self) -> "Iterator[NodeDouble]":
        """It and its ancestors but the root."""
        node: NodeDouble | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    @property
    def is_device_leaf(self) -> bool:
        return self.on_device and not self.locks and not any(child.on_device for child in self.children)


class TreeDouble:
    """``UnifiedRadixCache`` and its ``tree_core`` in one. Everything is inserted whole: node by node."""

    def __init__(self, *, is_write_back: bool = False, pool_tokens: int = 1000, host_tokens: int = 1000) -> None:
        self.tree_core = self
        self.is_write_back = is_write_back
        self.is_eagle = False
        self.linker: Any = None
        self.host_memory_mode = "cache"
        self.tree_components: tuple[ComponentType, ...] = (ComponentType.FULL,)
        self.page_size = 1
        self.pool_tokens = pool_tokens
        self.ongoing_write_through: dict[int, NodeDouble] = {}
        self.ongoing_load_back: dict[int, list[NodeDouble]] = {}
        self.cache_controller: Any = SimpleNamespace(
            load_queue=[],
            ack_load_queue=[],
            mem_pool_host=SimpleNamespace(
                logical_size=host_tokens, size=host_tokens, available_size=self._host_free
            ),
        )
        self._host_tokens = host_tokens
        self._nodes = [NodeDouble(0, None, [])]
        self._nodes[0].on_device = False
        self._walk: list[NodeDouble] | None = None
        self._walked: NodeDouble | None = None
        self._producer = -1

    # What a test does and sees

    def add(self, *parts: Sequence[int]) -> KeyDouble:
        """A context of these nodes; those that are there already are shared. Its key has one token more."""
        node = self._nodes[0]
        for part in parts:
            known = [child for child in node.children if child.tokens == list(part)]
            if known:
                node = known[0]
                continue
            made = NodeDouble(len(self._nodes), node, list(part))
            made.on_host = not self.is_write_back
            node.children.append(made)
            self._nodes.append(made)
            node = made
        return KeyDouble([*(token for part in parts for token in part), -1])

    def where(self, key: KeyDouble) -> str:
        """Each node on the key's way: D on the device, H on the host alone, . on neither."""
        return "".join("D" if n.on_device else "H" if n.on_host else "." for n in self._way(key))

    def hold(self, key: KeyDouble, by: int = 1) -> None:
        """A running turn locks the way, or lets it go."""
        for node in self._way(key):
            node.locks += by

    def look(self) -> None:
        """The engine's own look at what has ended, once a step."""
        for node in self.ongoing_write_through.values():
            for locked in node.path():
                locked.locks -= 1
        self.ongoing_write_through.clear()
        for nodes in self.ongoing_load_back.values():
            for node in nodes:
                node.locks -= 1
        self.ongoing_load_back.clear()
        self.cache_controller.ack_load_queue.clear()

    def give_up(self, key: KeyDouble) -> dict[ComponentType, list[Any]]:
        """The engine evicts the last node of the key's way from host memory; the slots that it frees."""
        node = self._way(key)[-1]
        node.on_host = False
        return {ComponentType.FULL: [node.slots]}

    def _way(self, key: KeyDouble) -> list[NodeDouble]:
        way, node, at = [], self._nodes[0], 0
        while True:
            found = [c for c in node.children if c.tokens == key.token_ids[at : at + len(c.tokens)]]
            if not found:
                return way
            node = found[0]
            way.append(node)
            at += len(node.tokens)

    def _host_free(self) -> int:
        return self._host_tokens - sum(len(node.tokens) for node in self._nodes if node.on_host)

    def device_tokens(self, *, locked: bool) -> int:
        return sum(len(n.tokens) for n in self._nodes if n.on_device and bool(n.locks) is locked)

    def evictable_size(self) -> int:
        return self.device_tokens(locked=False)

    def protected_size(self) -> int:
        return self.device_tokens(locked=True)

    def _component_available_size(self, component: ComponentType) -> int:
        return self.pool_tokens - self.evictable_size() - self.protected_size()

    # What the plugin calls

    def is_backuped(self, handle: int) -> bool:
        return self._nodes[handle].on_host

    def match_full_device_prefix(self, key: KeyDouble) -> tuple[int, int, int]:
        node, matched, whole = self._nodes[0], 0, 0
        while matched < len(key):
            rest = key.token_ids[matched:]
            found = [child for child in node.children if child.on_device and child.tokens[0] == rest[0]]
            if not found:
                break
            node = found[0]
            alike = next((i for i, (a, b) in enumerate(zip(node.tokens, rest, strict=False)) if a != b), None)
            length = min(len(node.tokens), len(rest)) if alike is None else alike
            matched, whole = matched + length, whole + len(node.tokens)
            if length < len(node.tokens):
                break
        return matched, node.handle, whole

    def match_prefix(self, params: Any) -> Any:
        way = self._way(params.key)
        reachable = [node for node in way if node.on_device or node.on_host]
        return SimpleNamespace(
            best_match_node=reachable[-1].handle if reachable else 0,
            host_hit_length=sum(len(node.tokens) for node in reachable if not node.on_device),
        )

    def _execute_and_commit_kv_backup(self, action: Any) -> int:
        for handle in action.node_ids:
            node = self._nodes[handle]
            if node.on_host:
                continue
            if not node.on_device or handle in self.ongoing_write_through:
                raise Core(f"{handle} cannot be copied")
            if not self.is_write_back and not all(above.on_host for above in list(node.path())[1:]):
                raise Core(f"{handle}'s parent has no copy")
            if self._host_free() < len(node.tokens):
                return 0
            node.on_host = True
            self.ongoing_write_through[handle] = node
            for locked in node.path():
                locked.locks += 1
        return 1

    def flush_pending_backups(self) -> None:
        """Copies begin at once here."""

    def evict_device_start(self, component: ComponentType, tokens: int) -> None:
        if self._walk is not None:
            raise Core("a walk is under way")
        self._walk = [node for node in self._nodes if node.is_device_leaf]
        self._walked = None

    def evict_device_end(self, component: ComponentType) -> None:
        self._walk = None

    def _evict_device_next_node(self, component: ComponentType, tracker: Any) -> tuple[int | None, bool]:
        assert self._walk is not None
        if self._walked is not None and self._walked.parent is not None and self._walked.parent.is_device_leaf:
            self._walk.insert(0, self._walked.parent)
        self._walked = self._walk.pop(0) if self._walk else None
        return (None, False) if self._walked is None else (self._walked.handle, True)

    def _evict_device_leaf(self, handle: int, tracker: dict[ComponentType, int]) -> object | None:
        node = self._nodes[handle]
        if self._walk is None or not node.is_device_leaf:
            raise Core(f"{handle} is no evictable leaf")
        if not node.on_host and self.is_write_back:
            return object()
        node.on_device = False
        tracker[ComponentType.FULL] += len(node.tokens)
        return None

    def _drop_subtree_no_host(self, handle: int, tracker: dict[ComponentType, int]) -> bool:
        node = self._nodes[handle]
        below = [other for other in self._nodes if node in other.path()]
        for other in below:
            other.on_host = False
        node.on_device = False
        tracker[ComponentType.FULL] += len(node.tokens)
        return True

    def build_load_back_spec(self, handle: int) -> tuple[Any, dict[ComponentType, Any]]:
        slots = array("q")
        for node in [node for node in self._nodes[handle].path() if not node.on_device][::-1]:
            if not node.on_host:
                raise Core(f"{node.handle} has no copy")
            slots += node.slots
        return SimpleNamespace(host_indices=slots), {}

    def load_back(self, handle: int, mem_quota: int) -> bool:
        nodes = [node for node in self._nodes[handle].path() if not node.on_device]
        needed = sum(len(node.tokens) for node in nodes)
        if needed < 10 or needed > mem_quota:
            return False
        for node in nodes:
            node.on_device = True
            node.locks += 1
        self.ongoing_load_back[handle] = nodes
        self.cache_controller.load_queue.append(handle)
        return True

    def ready_to_load_host_cache(self) -> int:
        controller = self.cache_controller
        if controller.ack_load_queue:
            raise Core("a load was begun while another runs")
        controller.ack_load_queue += controller.load_queue
        controller.load_queue.clear()
        self._producer += 1
        return self._producer


def scheduler_double(tree: TreeDouble, *, host: bool = True) -> Any:
    """A scheduler with that tree, as far as ``EngineView`` looks."""
    return SimpleNamespace(
        tree_cache=tree,
        server_args=SimpleNamespace(),
        page_size=1,
        max_total_num_tokens=tree.pool_tokens,
        enable_hierarchical_cache=host,
        running_batch=SimpleNamespace(reqs=[]),
    )


def add_classes(sglang: SglangDouble) -> None:
    """What the plugin imports of SGLang where it moves contexts."""
    names = {"BackupKV": "node_ids", "MatchPrefixParams": "key"}
    made = {name: type(name, (), {"__init__": _setter(field)}) for name, field in names.items()}
    sglang.set(f"{_MEM_CACHE}.unified_cache.cache_action.BackupKV", made["BackupKV"])
    sglang.set(f"{_MEM_CACHE}.base_prefix_cache.MatchPrefixParams", made["MatchPrefixParams"])


def _setter(field: str) -> Any:
    def set_field(self: Any, *values: Any, **named: Any) -> None:
        setattr(self, field, values[0] if values else named[field])

    return set_field
