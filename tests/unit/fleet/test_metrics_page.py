"""Engines' pages for Prometheus, as SGLang and vLLM write them."""

import pytest

from controlplane.fleet.metrics_page import PoolPage, read_page

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{engine="0",model_name="m"} 7.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000"} 1.0
vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="m"} 0.0
"""
SGLANG = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 4.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 1.0
sglang:max_total_num_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 16000.0
sglang:max_total_num_tokens_swa{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.0
sglang:page_size{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 64.0
sglang:num_used_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 9000.0
sglang:kv_available_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 2000.0
sglang:kv_evictable_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 5000.0
sglang:num_retracted_requests_total{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 3.0
sglang:hicache_host_total_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 32000.0
sglang:hicache_host_used_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 1000.0
"""


def test_vllm_tells_its_pool_by_blocks_and_how_much_of_it_is_in_use() -> None:
    assert read_page(VLLM) == PoolPage(
        engine="vllm",
        total_tokens=16_000,
        free_tokens=12_000,
        block_tokens=16,
        turns_running=3,
        turns_waiting=2,
        retractions=7,
    )


def test_sglang_tells_free_and_evictable_tokens() -> None:
    assert read_page(SGLANG) == PoolPage(
        engine="sglang",
        total_tokens=16_000,
        free_tokens=2_000,
        evictable_tokens=5_000,
        block_tokens=64,
        turns_running=4,
        turns_waiting=1,
        retractions=3,
        host_total_tokens=32_000,
        host_used_tokens=1_000,
    )
    older = [line for line in SGLANG.splitlines() if "kv_available" not in line and "kv_evictable" not in line]
    page = read_page("\n".join(older))
    assert (page.free_tokens, page.evictable_tokens) == (7_000, 0), "by those in use"


def test_tensor_ranks_tell_one_pool_and_data_parallel_ranks_one_each() -> None:
    ranks = SGLANG + SGLANG.replace('tp_rank="0"', 'tp_rank="1"')
    assert read_page(ranks) == read_page(SGLANG)
    data_parallel = SGLANG.replace("{", '{dp_rank="0",') + SGLANG.replace("{", '{dp_rank="1",')
    assert read_page(data_parallel).total_tokens == 32_000
    assert read_page(VLLM + VLLM.replace('engine="0"', 'engine="1"')).free_tokens == 24_000


def test_a_vllm_that_has_not_counted_its_memory_tells_no_pool() -> None:
    page = read_page(VLLM.replace('num_gpu_blocks="1000"', 'num_gpu_blocks="None"'))
    assert (page.engine, page.total_tokens, page.turns_running) == ("vllm", 0, 3)


def test_llama_cpp_tells_its_turns_and_no_memory() -> None:
    page = read_page("llamacpp:n_tokens_max 3977\nllamacpp:requests_processing 2\nllamacpp:requests_deferred 3\n")
    assert page == PoolPage(engine="llamacpp", turns_running=2, turns_waiting=3)


@pytest.mark.parametrize("text", ["", "<html>not found</html>", "# nothing\n", "other:requests_processing 1\n"])
def test_a_page_that_nobody_knows_tells_nothing(text: str) -> None:
    assert read_page(text) == PoolPage(engine="")


def test_a_broken_line_of_ours_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"."):
        read_page('vllm:kv_cache_usage_perc{engine="0" 0.25\n')
