"""What the plugin needs of SGLang: every function that it hooks or calls, with the parameters it relies on.

Names are those of the supported versions. A newer SGLang that still has them works; one that has not is found out
before anything is hooked.
"""

from engine_hooks.engine.targets import Feature, Target
from engine_hooks.engine.targets import one as _one

SUPPORTED_VERSIONS = (
    "0.5.17",
    "0.5.21",
)  # what every run of the engine tests runs on; others are said to be untested
KNOWN_DIFFERENCES = {
    "0.5.17": "its tree is RadixCache, so contexts are not moved to host memory;"
    " it has no PrefillBudget, so a prefill that does not fit is not begun with a smaller chunk",
    "0.5.23": "a request's prefix_indices is prefix_len and its extend_range is extend_len, a match's"
    " device_indices is device_prefix_len: either is read; the engine tests pass, on torch 2.13, not its 2.14",
}

GENERATE = "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request"
TERMINATE = "sglang.srt.managers.tokenizer_manager.SignalHandler.sigterm_handler"
REQUEST = "sglang.srt.managers.io_struct.GenerateReqInput"
ADD_MIDDLEWARE = "sglang.srt.entrypoints.http_server.app.add_middleware"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler."
_RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver."
BROADCAST = _RECEIVER + "_broadcast_reqs_across_ranks"
BATCH = "sglang.srt.managers.schedule_batch.ScheduleBatch."
_CORE = "sglang.srt.mem_cache.unified_cache.unified_tree_core_interface.UnifiedTreeCoreInterface."
POLICY = "sglang.srt.managers.schedule_policy."
TREES = (
    "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.",
    "sglang.srt.mem_cache.radix_cache.RadixCache.",
)


def _tree(feature: Feature, method: str, *first: str) -> Target:
    return Target(feature=feature, paths=tuple(tree + method for tree in TREES), first=("self", *first))


TARGETS: tuple[Target, ...] = (
    _one(Feature.PROBE, "sglang.srt.plugins.hook_registry.HookRegistry.register", "target", "hook", "hook_type"),
    _one(Feature.PROBE, GENERATE, "self", "obj", "request"),
    _one(Feature.PROBE, REQUEST, has=("sampling_params",)),
    _one(Feature.PROBE, SCHEDULER + "__init__", "self"),
    _one(Feature.PROBE, SCHEDULER + "_add_request_to_queue", "self", "req"),
    _one(Feature.PROBE, SCHEDULER + "get_next_batch_to_run", "self"),
    _one(Feature.PROBE, SCHEDULER + "get_new_batch_prefill", "self"),
    _one(Feature.PROBE, SCHEDULER + "process_batch_result", "self", "batch"),
    _one(Feature.PROBE, BATCH + "retract_decode", "self"),
    _one(Feature.PROBE, "sglang.srt.mem_cache.common.release_kv_cache", "req", "tree_cache"),
    _tree(Feature.PROBE, "evictable_size"),
    _one(Feature.GATE, ADD_MIDDLEWARE, "middleware_class"),
    _one(Feature.GATE, TERMINATE, "self"),
    _one(Feature.PINS, "sglang.srt.mem_cache.radix_cache.RadixKey", has=("extra_key",)),
    _one(Feature.PINS, "sglang.srt.mem_cache.base_prefix_cache.MatchPrefixParams", has=("key",)),
    _tree(Feature.PINS, "match_prefix", "params"),
    _tree(Feature.PINS, "inc_lock_ref", "node"),
    _tree(Feature.PINS, "dec_lock_ref", "node"),
    _tree(Feature.PINS, "reset"),
    Target(feature=Feature.PINS, paths=(TREES[0] + "_evict_device_leaf", TREES[1] + "_delete_leaf")),
    _one(Feature.PINS, BATCH + "check_decode_mem", "self", "selected_indices"),
    _one(Feature.PINS, BATCH + "new_tokens_required_next_decode", "self", "selected_indices"),
    _one(Feature.PINS, POLICY + "SchedulePolicy.calc_priority", "self", "waiting_queue"),
    _one(Feature.PINS, POLICY + "PrefillAdder.add_one_req", "self", "req"),
    _one(Feature.RANKS, BROADCAST, "self", "recv_reqs"),
    _one(
        Feature.HOST,
        "sglang.srt.mem_cache.base_prefix_cache.MatchResult",
        has=("best_match_node", "host_hit_length"),
    ),
    _one(Feature.HOST, "sglang.srt.mem_cache.unified_cache.cache_action.BackupKV"),
    _one(Feature.HOST, BATCH + "hicache_consumer_index"),
    _one(Feature.HOST, "sglang.srt.managers.cache_controller.HiCacheController.start_loading", "self"),
    _one(Feature.HOST, TREES[0] + "evict_host", "self", "num_tokens"),
    _one(Feature.HOST, TREES[0] + "load_back", "self", "node_id", "mem_quota"),
    _one(Feature.HOST, TREES[0] + "ready_to_load_host_cache", "self"),
    _one(Feature.HOST, TREES[0] + "is_backuped", "self", "node_id"),
    _one(Feature.HOST, TREES[0] + "flush_pending_backups", "self"),
    _one(Feature.HOST, TREES[0] + "_execute_and_commit_kv_backup", "self", "action"),
    _one(Feature.HOST, TREES[0] + "_evict_device_next_node", "self", "component_type", "tracker"),
    _one(Feature.HOST, TREES[0] + "_drop_subtree_no_host", "self", "node_id", "tracker"),
    _one(Feature.HOST, TREES[0] + "_free_values", "self", "device_frees", "host_frees"),
    _one(Feature.HOST, _CORE + "match_full_device_prefix", "self", "key"),
    _one(Feature.HOST, _CORE + "build_load_back_spec", "self", "node_id"),
    _one(Feature.HOST, _CORE + "evict_device_start", "self", "component_type", "request_cnt"),
    _one(Feature.HOST, _CORE + "evict_device_end", "self", "component_type"),
)
