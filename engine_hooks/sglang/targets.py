"""What the plugin needs of SGLang: every function that it hooks or calls, with the parameters it relies on.

Names are those of the supported versions. A newer SGLang that still has them works; one that has not is found out
before anything is hooked.
"""

from engine_hooks.engine.targets import Feature, Target
from engine_hooks.engine.targets import one as _one

SUPPORTED_VERSIONS = ("0.5.21", "0.5.23")  # what every run of the engine tests runs on; others are untested

GENERATE = "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request"
TERMINATE = "sglang.srt.managers.tokenizer_manager.SignalHandler.sigterm_handler"
REQUEST = "sglang.srt.managers.io_struct.GenerateReqInput"
ADD_MIDDLEWARE = "sglang.srt.entrypoints.http_server.app.add_middleware"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler."
PREFILL_STEP = SCHEDULER + "get_next_disagg_prefill_batch_to_run"
DECODE_STEP = SCHEDULER + "get_next_disagg_decode_batch_to_run"
_RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver."
BROADCAST = _RECEIVER + "_broadcast_reqs_across_ranks"
BATCH = "sglang.srt.managers.schedule_batch.ScheduleBatch."
_CORE = "sglang.srt.mem_cache.unified_cache.unified_tree_core_interface.UnifiedTreeCoreInterface."
POLICY = "sglang.srt.managers.schedule_policy."
CHECK_PREFILL = POLICY + "PrefillAdder._check_prefill_budget"
CHUNK_TOKENS = "sglang.srt.mem_cache.prefill_budget.PrefillBudget.available_chunk_tokens"
RETRACTION = BATCH + "_get_decode_retraction_order"
TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache."

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
    _one(Feature.PROBE, TREE + "evictable_size", "self"),
    _one(Feature.GATE, ADD_MIDDLEWARE, "middleware_class"),
    _one(Feature.GATE, TERMINATE, "self"),
    _one(Feature.PINS, "sglang.srt.mem_cache.radix_cache.RadixKey", has=("extra_key",)),
    _one(Feature.PINS, "sglang.srt.mem_cache.base_prefix_cache.MatchPrefixParams", has=("key",)),
    _one(Feature.PINS, TREE + "match_prefix", "self", "params"),
    _one(Feature.PINS, TREE + "inc_lock_ref", "self", "node_id"),
    _one(Feature.PINS, TREE + "dec_lock_ref", "self", "node_id", "params"),
    _one(Feature.PINS, TREE + "reset", "self"),
    _one(Feature.PINS, TREE + "evict", "self", "params"),
    _one(Feature.PINS, TREE + "evict_for_alloc", "self", "params"),
    _one(Feature.PINS, TREE + "_component_available_size", "self", "component_type"),
    _one(Feature.PINS, TREE + "_evict_device_next_node", "self", "component_type", "tracker"),
    _one(Feature.PINS, TREE + "_evict_device_leaf", "self", "node_id", "tracker"),
    _one(Feature.PINS, _CORE + "match_full_device_prefix", "self", "key"),
    _one(Feature.PINS, _CORE + "component_evictable_size", "self", "component_type"),
    _one(Feature.PINS, _CORE + "evict_device_start", "self", "component_type", "request_cnt"),
    _one(Feature.PINS, _CORE + "evict_device_end", "self", "component_type"),
    _one(Feature.PINS, POLICY + "SchedulePolicy.calc_priority", "self", "waiting_queue"),
    _one(Feature.PINS, POLICY + "PrefillAdder.add_one_req", "self", "req"),
    _one(Feature.RANKS, BROADCAST, "self", "recv_reqs"),
    _one(Feature.DISAGGREGATION, PREFILL_STEP, "self", "running_batch"),
    _one(Feature.DISAGGREGATION, DECODE_STEP, "self", "running_batch"),
    _one(Feature.CHUNKS, CHECK_PREFILL, "self", "req"),
    _one(Feature.CHUNKS, CHUNK_TOKENS, "self", "chunk_limit"),
    _one(Feature.CHUNKS, RETRACTION, "reqs"),
    _one(
        Feature.HOST,
        "sglang.srt.mem_cache.base_prefix_cache.MatchResult",
        has=("best_match_node", "host_hit_length"),
    ),
    _one(Feature.HOST, "sglang.srt.mem_cache.unified_cache.cache_action.BackupKV"),
    _one(Feature.HOST, BATCH + "hicache_consumer_index"),
    _one(Feature.HOST, "sglang.srt.managers.cache_controller.HiCacheController.start_loading", "self"),
    _one(Feature.HOST, TREE + "evict_host", "self", "num_tokens"),
    _one(Feature.HOST, TREE + "load_back", "self", "node_id", "mem_quota"),
    _one(Feature.HOST, TREE + "ready_to_load_host_cache", "self"),
    _one(Feature.HOST, TREE + "is_backuped", "self", "node_id"),
    _one(Feature.HOST, TREE + "flush_pending_backups", "self"),
    _one(Feature.HOST, TREE + "_execute_and_commit_kv_backup", "self", "action"),
    _one(Feature.HOST, TREE + "_drop_subtree_no_host", "self", "node_id", "tracker"),
    _one(Feature.HOST, TREE + "_free_values", "self", "device_frees", "host_frees"),
    _one(Feature.HOST, _CORE + "build_load_back_spec", "self", "node_id"),
)
