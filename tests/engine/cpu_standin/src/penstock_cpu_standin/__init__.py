"""An SGLang plugin, for tests only: what SGLang still lacks on a plain CPU.

Pages of more than one token: two Triton kernels of the paged allocator, in torch. HiCache (with
``--hicache-io-backend direct --hicache-mem-layout layer_first``): host memory without a CUDA registration, and
the copy between the tiers, in torch.
"""

from collections.abc import Callable
from typing import Any

import torch


class _Kernel:
    """Called as ``kernel[grid](...)``, like a Triton kernel."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self._function


def _pages(tokens: torch.Tensor, page_size: int) -> torch.Tensor:
    return (tokens + page_size - 1) // page_size


def _alloc_extend(
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    batch_size_bound: int,
    page_size: int,
) -> None:
    from sglang.srt.mem_cache.allocator.paged import alloc_extend_naive

    needed = (_pages(seq_lens, page_size) - _pages(prefix_lens, page_size)).sum()
    if needed > len(free_pages):
        return  # the caller counts too, and gives the result up
    alloc_extend_naive(prefix_lens, seq_lens, last_loc, free_pages, out_indices, page_size, out_indices.device)


def _alloc_decode(
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    batch_size_bound: int,
    page_size: int,
) -> None:
    opens_page = (seq_lens - 1) % page_size == 0
    opened = int(opens_page.sum())
    if opened > len(free_pages):
        return  # the caller counts too, and gives the result up
    out_indices.copy_(last_loc + 1)
    out_indices[opens_page] = free_pages[:opened] * page_size


def _host_memory(dims: Any, dtype: torch.dtype, device: str, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.zeros(dims, dtype=dtype, device=device)


def _transfer(
    src_layers: list[torch.Tensor],
    dst_layers: list[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices.long()] = source[src_indices.long()]


def register() -> None:
    """SGLang calls this in every process that loads plugins."""
    from sglang.srt.mem_cache.allocator import paged
    from sglang.srt.mem_cache.pool_host import common, mha

    paged.alloc_extend_kernel = _Kernel(_alloc_extend)
    paged.alloc_decode_kernel = _Kernel(_alloc_decode)
    common.ALLOC_MEMORY_FUNCS["cpu"] = _host_memory
    mha.transfer_kv_direct = _transfer
