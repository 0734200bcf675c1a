"""Random turns, pins, discards and evictions in SGLang's own radix tree, in its environment and without a model.

Tree, pools and plugin are the real ones; a double stands for the scheduler, which computes nothing. After each step
what the plugin promised is looked up, and what the pools and the tree hold is added up.

Run by ``test_engine_components.py``: ``python tree_scene.py swa,mamba STEPS SEED MODEL`` prints what happened, as
JSON.
"""

import json
import random
import sys
from array import array
from collections import Counter
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import evict_from_tree_cache
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool, MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from controlplane.core.model import commands as cmd
from controlplane.core.model.types import seconds
from controlplane.core.policies.engine_policies import EnginePolicies
from controlplane.core.policies.memory.opportunistic import Opportunistic
from controlplane.core.policies.priority.mlfq import Mlfq
from engine_hooks.engine.settings import Settings
from engine_hooks.sglang import scheduler_side
from engine_hooks.sglang.attached import Attached

POOL, WINDOW, WINDOW_POOL, STATES = 250, 16, 150, 4
LONGEST, PROGRAMS, TURN = 150, 14, (5, 25)
SYSTEM = array("q", range(1, 21))
_DTYPE, _HEADS = torch.float16, {"head_num": 1, "head_dim": 8}


def made_tree(names: list[str]) -> UnifiedRadixCache:
    """A tree with these components beside full attention's."""
    common: dict[str, Any] = {"page_size": 1, "dtype": _DTYPE, "device": "cpu"}
    requests: Any = ReqToTokenPool(size=4, max_context_len=LONGEST, device="cpu", enable_memory_saver=False)
    if "mamba" in names:
        requests = _pool_with_states()
    pool: Any
    if "swa" in names:
        sizes = {"size": POOL, "size_swa": WINDOW_POOL}
        layers = {"swa_attention_layer_ids": [0], "full_attention_layer_ids": [1]}
        pool = SWAKVPool(**sizes, **layers, **_HEADS, **common)
        allocator: Any = SWATokenToKVPoolAllocator(**sizes, **common, kvcache=pool, need_sort=False)
    else:
        pool = MHATokenToKVPool(size=POOL, **_HEADS, **common, layer_num=1, enable_memory_saver=False)
        common.pop("page_size")
        allocator = TokenToKVPoolAllocator(size=POOL, **common, kvcache=pool, need_sort=False)
    components = tuple(ComponentType[name.upper()] for name in ("full", *names))
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=requests,
        token_to_kv_pool_allocator=allocator,
        page_size=1,
        sliding_window_size=WINDOW if "swa" in names else None,
        tree_components=components,
    )
    return UnifiedRadixCache(params)


def _pool_with_states() -> HybridReqToTokenPool:
    from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape

    shape = Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=16,
        n_groups=1,
        num_heads=2,
        head_dim=8,
        state_size=8,
        conv_kernel=4,
    )
    return HybridReqToTokenPool(
        size=4,
        mamba_size=STATES,
        mamba_spec_state_size=0,
        max_context_len=LONGEST,
        device="cpu",
        enable_memory_saver=False,
        cache_params=Mamba2CacheParams(shape=shape, layers=[0]),
        mamba_layer_ids=[0],
        enable_mamba_extra_buffer=False,
    )


class Scene:
    """One scheduler's plugin over that tree, at a time that it sets."""

    def __init__(self, names: list[str], seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ns = 0
        self.seen: Counter[str] = Counter()
        self.contexts: dict[str, array[int]] = {}
        self.tree = tree = made_tree(names)
        self._turns = 0
        batch = SimpleNamespace(reqs=[], batch_is_full=False)
        self._scheduler = SimpleNamespace(
            tree_cache=tree,
            server_args=SimpleNamespace(),
            page_size=1,
            max_total_num_tokens=POOL,
            running_batch=batch,
            waiting_queue=[],
            chunked_req=None,
            chunked_prefill_size=64,
        )
        settings = Settings(pin_budget_ratio=1.0)  # so that pins alone may fill it
        side = scheduler_side.install(settings)
        HookRegistry.apply_hooks()
        side.attached = self.plugin = Attached(self._scheduler, settings, side.guard, lambda: self.now_ns)
        self.guard = side.guard

    # What happens

    def step(self) -> None:
        self.now_ns += seconds(self.random.uniform(0, 2))
        if self._turns % 50 == 0:
            policies = EnginePolicies(priority=Mlfq(), memory=Opportunistic()).dumps()
            self.plugin.on_heartbeat(SimpleNamespace(engine_policies=policies, lease_ttl_ns=seconds(3600)))
        name = f"p{self.random.randrange(PROGRAMS)}"
        choice = self.random.random()
        if choice < 0.5:
            self.turn(name)
        elif choice < 0.85:
            recent = self.random.choice([*self.contexts][-6:] or [name])
            self._say(cmd.Retain(program_id=recent, ttl_ns=seconds(self.random.uniform(1, 300))))
        elif choice < 0.9:
            self._say(cmd.Release(program_id=name))
        elif choice < 0.95:
            self._say(cmd.Discard(program_id=name))
        else:
            self._say(cmd.Pause(program_id=name))
        self.plugin.step_begins()

    def _say(self, command: Any) -> None:
        self.seen[type(command).__name__] += 1
        self.plugin.on_command(command)

    def turn(self, name: str) -> None:
        """A request goes through: what SGLang does with tree and pools from its admission to its release."""
        self._turns += 1
        tree, more = self.tree, self.random.randint(*TURN)
        before = self.contexts.get(name, SYSTEM)
        if len(before) + more > LONGEST:
            before = SYSTEM
        prompt = before + array("q", (self.random.randrange(100, 10**6) for _ in range(more)))
        request = self._request(name, prompt)
        self.plugin.request_queued(None, None, self._scheduler, request)
        found = tree.match_prefix(MatchPrefixParams(key=RadixKey(prompt)))
        hit = int(getattr(found, "device_prefix_len", -1))
        hit = len(found.device_indices) if hit < 0 else hit
        self.seen["hits"] += hit > len(SYSTEM)
        lock = tree.inc_lock_ref(found.last_device_node)
        request.prefix_len = hit
        self.plugin.prefill_planned(SimpleNamespace(reqs=[request]), None)
        evict_from_tree_cache(tree, len(prompt) - hit)
        indices = tree.token_to_kv_pool_allocator.alloc(len(prompt) - hit)
        assert indices is not None, "no room, though nobody else runs"
        state = self._state()
        head = tree.tree_core.collect_full_device_indices(found.last_device_node, tree.tree_core.root_node_handle())
        value = torch.cat((head[:hit].to(torch.int64), indices.to(torch.int64)))
        params = InsertParams(key=RadixKey(prompt), value=value, mamba_value=state, prev_prefix_len=hit)
        result = tree.insert(params)
        if state is not None and result.mamba_exist:
            tree.req_to_token_pool.mamba_allocator.free(state)
        tree.dec_lock_ref(found.last_device_node, lock.to_dec_params())
        saved = self.plugin.before_release(request, tree)
        self.plugin.released(None, saved, request)
        self.contexts.pop(name, None)  # so that the last is the most recent
        self.contexts[name] = prompt

    def _state(self) -> Any:
        if ComponentType.MAMBA not in self.tree.tree_components:
            return None
        allocator = self.tree.req_to_token_pool.mamba_allocator
        if allocator.available_size() < 1:
            self.tree.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
        state = allocator.alloc(1)
        assert state is not None, "no room for a state, though nobody else runs"
        return state

    def _request(self, name: str, prompt: "array[int]") -> Any:
        params = SimpleNamespace(custom_params={"program_id": name}, max_new_tokens=1)
        return SimpleNamespace(
            rid=f"{name}-{self._turns}",
            origin_input_ids=prompt,
            output_ids=array("q"),
            sampling_params=params,
            routing_key=None,
            extra_key=None,
            prefix_len=0,
            extend_len=1,
            finished_reason=None,
            finished=lambda: True,
        )

    # What must hold

    def check(self) -> None:
        tree, pins = self.tree, self.plugin._pins
        for name, held in pins._held.items():
            found = tree.match_prefix(MatchPrefixParams(key=RadixKey(self.contexts[name])))
            hit = int(getattr(found, "device_prefix_len", -1))
            hit = len(found.device_indices) if hit < 0 else hit
            assert hit >= held.lock.tokens > 0, f"{name} is pinned and lost {held.lock.tokens - hit} tokens"
        self.seen["most pinned"] = max(self.seen["most pinned"], len(pins.programs))
        for component, size in self._sizes().items():
            held = tree.tree_core.component_evictable_size(component)
            held += tree.tree_core.component_protected_size(component)
            free = tree._component_available_size(component)
            assert free + held == size, f"{component.name}: {free} free and {held} in the tree, of {size}"
        assert self.guard.failures == {}, self.guard.failures

    def _sizes(self) -> dict[ComponentType, int]:
        sizes = {ComponentType.FULL: POOL, ComponentType.SWA: WINDOW_POOL, ComponentType.MAMBA: STATES}
        return {component: sizes[component] for component in self.tree.tree_components}

    def end(self) -> None:
        """Everything can be given up and freed."""
        for name in list(self.contexts):
            self._say(cmd.Release(program_id=name))
        self.plugin.step_begins()
        self.tree.evict(EvictParams(num_tokens=POOL))
        for component, size in self._sizes().items():
            assert self.tree._component_available_size(component) == size, f"{component.name} leaks"


def main() -> None:
    names, steps, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    set_global_server_args_for_scheduler(ServerArgs(model_path=sys.argv[4], device="cpu"))
    scene = Scene([name for name in names.split(",") if name != "full"], seed)
    emitted = Counter[str]()
    send = scene.plugin._send

    def note(event: Any) -> None:
        emitted[type(event).__name__] += 1
        send(event)

    scene.plugin._send = note  # type: ignore[method-assign]
    for _ in range(steps):
        scene.step()
        scene.check()
    scene.tree.sanity_check()
    scene.end()
    sys.stdout.write(json.dumps({**scene.seen, **emitted}) + "\n")


if __name__ == "__main__":
    main()
