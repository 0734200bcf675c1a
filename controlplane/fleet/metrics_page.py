"""What an engine's page for Prometheus tells of its memory and its turns, of those engines that we know.

The names were read in SGLang 0.5.21 (``srt/observability/metrics_collector.py``; it has the page with
``--enable-metrics``) and in vLLM 0.28 and 0.32 (``v1/metrics/loggers.py``). SGLang writes its figures with each
batch that it logs, so they may lag by some decode steps. vLLM counts what it could evict as free. llama.cpp's
server (``tools/server/server-task.cpp``, with ``--metrics``) tells nothing of its memory: ``/props`` has that.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Labels = Mapping[str, str]
Series = dict[str, list[tuple[Labels, float]]]  # by name

_VLLM, _SGLANG, _LLAMACPP = "vllm:", "sglang:", "llamacpp:"
_INTERESTING = (
    "vllm:cache_config_info",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",  # until 0.9
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_preemptions_total",
    "sglang:max_total_num_tokens",
    "sglang:page_size",
    "sglang:num_used_tokens",
    "sglang:kv_available_tokens",
    "sglang:kv_evictable_tokens",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:num_retracted_requests_total",
    "sglang:hicache_host_total_tokens",
    "sglang:hicache_host_used_tokens",
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
)
_WANTED = tuple(f"{name}{after}" for name in _INTERESTING for after in ("{", " "))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPage:
    """One reading, all ranks of the server together. ``total_tokens`` is 0 where the page does not tell the pool.

    ``retractions`` counts up from the engine's start.
    """

    engine: str  # "sglang", "vllm", "llamacpp", or empty: a page that we cannot read
    total_tokens: int = 0
    free_tokens: int = 0
    evictable_tokens: int = 0
    block_tokens: int = 1
    turns_running: int = 0
    turns_waiting: int = 0
    retractions: int = 0
    host_total_tokens: int = 0
    host_used_tokens: int = 0


def read_page(text: str) -> PoolPage:
    """Read a page. Raises ``ValueError`` for text that is no such page where it should tell us something."""
    selected = "\n".join(
        line for line in text.splitlines() if line.startswith(_WANTED)
    )  # of thousands: the rest is slow
    series: Series = defaultdict(list)
    for family in text_string_to_metric_families(f"{selected}\n"):
        for sample in family.samples:
            series[sample.name].append((sample.labels, float(sample.value)))
    if any(name.startswith(_VLLM) for name in series):
        return _vllm(series)
    if any(name.startswith(_SGLANG) for name in series):
        return _sglang(series)
    if any(name.startswith(_LLAMACPP) for name in series):
        return _llamacpp(series)
    return PoolPage(engine="")


def _vllm(series: Series) -> PoolPage:
    usage = _by(series, "vllm:kv_cache_usage_perc", _vllm_rank) or _by(
        series, "vllm:gpu_cache_usage_perc", _vllm_rank
    )
    total = free = 0
    block_tokens = 1
    for labels, _ in series["vllm:cache_config_info"]:
        blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        if blocks.isdigit() and size.isdigit() and int(size) > 0:  # "None" until the engine has counted its memory
            block_tokens = int(size)
            total += int(blocks) * block_tokens
            free += round(int(blocks) * (1 - min(1.0, usage.get(_vllm_rank(labels), 0.0)))) * block_tokens
    return PoolPage(
        engine="vllm",
        total_tokens=total,
        free_tokens=free,
        block_tokens=block_tokens,
        turns_running=_sum(series, "vllm:num_requests_running", _vllm_rank),
        turns_waiting=_sum(series, "vllm:num_requests_waiting", _vllm_rank),
        retractions=_sum(series, "vllm:num_preemptions_total", _vllm_rank),
    )


def _sglang(series: Series) -> PoolPage:
    def total(name: str) -> int:
        return _sum(series, f"sglang:{name}", _sglang_rank)

    pool = total("max_total_num_tokens")
    has_available = "sglang:kv_available_tokens" in series
    free = min(pool, max(0, total("kv_available_tokens") if has_available else pool - total("num_used_tokens")))
    pages = _by(series, "sglang:page_size", _sglang_rank)
    return PoolPage(
        engine="sglang",
        total_tokens=pool,
        free_tokens=free,
        evictable_tokens=min(pool - free, total("kv_evictable_tokens")),
        block_tokens=max(1, int(next(iter(pages.values()), 1))),
        turns_running=total("num_running_reqs"),
        turns_waiting=total("num_queue_reqs"),
        retractions=total("num_retracted_requests_total"),
        host_total_tokens=total("hicache_host_total_tokens"),
        host_used_tokens=total("hicache_host_used_tokens"),
    )


def _llamacpp(series: Series) -> PoolPage:
    return PoolPage(
        engine="llamacpp",
        turns_running=_sum(series, "llamacpp:requests_processing", _only_rank),
        turns_waiting=_sum(series, "llamacpp:requests_deferred", _only_rank),
    )


def _only_rank(labels: Labels) -> str:
    return ""


def _vllm_rank(labels: Labels) -> str:
    return labels.get("engine", "")


def _sglang_rank(labels: Labels) -> str:
    """Tensor and pipeline ranks of one engine tell the same pool; data-parallel ones have a pool each."""
    return labels.get("dp_rank", "")


def _by(series: Series, name: str, rank: Callable[[Labels], str]) -> dict[str, float]:
    """The figure by rank; the largest where several series tell of one rank."""
    found: dict[str, float] = {}
    for labels, value in series.get(name, ()):
        if value == value:  # no NaN
            found[rank(labels)] = max(value, found.get(rank(labels), 0.0))
    return found


def _sum(series: Series, name: str, rank: Callable[[Labels], str]) -> int:
    return round(sum(_by(series, name, rank).values()))
