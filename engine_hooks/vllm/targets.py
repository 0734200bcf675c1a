"""What the plugin needs of vLLM: every function that it hooks or calls, with the parameters it relies on.

They are looked at where they are: those of the engine in EngineCore's process before its scheduler is made, those
of the server when its app is. A newer vLLM that still has them works.
"""

from engine_hooks.engine.targets import Feature, Target
from engine_hooks.engine.targets import one as _one

SUPPORTED_VERSIONS = ("0.32.0",)  # what the engine tests run on; others are said to be untested

FROM_ARGS = "vllm.engine.arg_utils.EngineArgs.from_cli_args"
SCHEDULER_CLASS = "vllm.config.scheduler.SchedulerConfig.get_scheduler_cls"
ADD_REQUEST = "vllm.v1.engine.async_llm.AsyncLLM.add_request"
SHUTDOWN = "vllm.v1.engine.async_llm.AsyncLLM.shutdown"
BUILD_STACK = "fastapi.FastAPI.build_middleware_stack"
_SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler."
_OUTPUT = "vllm.v1.core.sched.output."
_POOL = "vllm.v1.core.block_pool.BlockPool."
_CACHE = "vllm.v1.core.kv_cache_utils."
_FIND = "vllm.v1.core.kv_cache_coordinator.KVCacheCoordinator.find_longest_cache_hit"
_MANAGER = "vllm.v1.core.kv_cache_manager.KVCacheManager."

SERVER_TARGETS: tuple[Target, ...] = (
    _one(Feature.PROBE, FROM_ARGS, "args"),
    _one(Feature.PROBE, ADD_REQUEST, "self", "request_id", "prompt", "params"),
    _one(Feature.GATE, BUILD_STACK, "self"),
    _one(Feature.GATE, SHUTDOWN, "self"),
)
ENGINE_TARGETS: tuple[Target, ...] = (
    _one(Feature.PROBE, SCHEDULER_CLASS, "self"),
    _one(Feature.PROBE, _SCHEDULER + "add_request", "self", "request"),
    _one(Feature.PROBE, _SCHEDULER + "schedule", "self"),
    _one(Feature.PROBE, _SCHEDULER + "update_from_output", "self", "scheduler_output", "model_runner_output"),
    _one(Feature.PROBE, _SCHEDULER + "_free_request", "self", "request"),
    _one(Feature.PROBE, _SCHEDULER + "_preempt_request", "self", "request"),
    _one(Feature.PROBE, _SCHEDULER + "has_requests", "self"),
    _one(Feature.PROBE, _SCHEDULER + "get_request_counts", "self"),
    _one(Feature.PROBE, _OUTPUT + "SchedulerOutput", has=("scheduled_new_reqs", "num_scheduled_tokens")),
    _one(Feature.PROBE, _OUTPUT + "NewRequestData", has=("req_id", "num_computed_tokens")),
    _one(Feature.PINS, _SCHEDULER + "reset_prefix_cache", "self"),
    _one(Feature.PINS, _MANAGER + "allocate_slots", "self", "request"),
    _one(Feature.PINS, _MANAGER + "get_blocks", "self", "request_id"),
    _one(Feature.PINS, _FIND, "self", "block_hashes", "max_cache_hit_length"),
    _one(Feature.PINS, _POOL + "get_new_blocks", "self", "num_blocks"),
    _one(Feature.PINS, _POOL + "get_cached_block", "self", "block_hash", "kv_cache_group_ids"),
    _one(Feature.PINS, _POOL + "touch", "self", "blocks"),
    _one(Feature.PINS, _POOL + "free_blocks", "self", "ordered_blocks"),
    _one(Feature.PINS, _POOL + "evict_blocks", "self", "block_ids"),
    _one(Feature.PINS, _CACHE + "FreeKVCacheBlockQueue.remove", "self", "block"),
    _one(Feature.PINS, _CACHE + "FreeKVCacheBlockQueue.prepend_n", "self", "blocks"),
    _one(Feature.PINS, _CACHE + "make_block_hash_with_group_id", "block_hash", "group_id"),
    _one(Feature.PINS, "vllm.v1.engine.core.EngineCoreProc.run_busy_loop", "self"),
    _one(Feature.PINS, "vllm.v1.engine.EngineCoreRequestType.WAKEUP"),
)
TARGETS = (*SERVER_TARGETS, *ENGINE_TARGETS)
