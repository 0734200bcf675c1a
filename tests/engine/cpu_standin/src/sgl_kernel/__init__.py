"""A stand-in for ``sgl_kernel``, for tests only: the CPU symbols that SGLang imports, in plain torch.

SGLang's CPU kernels are built from its source tree, and the wheel has CUDA ones. Without the operators of
``torch.ops.sgl_kernel`` SGLang takes its native layers, so only the index helpers below are ever called; any
other ``*_cpu`` symbol can be imported and raises when it is called.
"""

from collections.abc import Iterator
from typing import Any

import torch

__version__ = "0.0.0+cpu.standin"


def _spans(rows: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> Iterator[tuple[int, slice, slice]]:
    """Each row's own span of columns, and where that span lies in the flat tensor of all of them."""
    flat = 0
    for row, first, last in torch.stack((rows.long(), start.long(), end.long()), dim=1).tolist():
        yield row, slice(first, last), slice(flat, flat + last - first)
        flat += last - first


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write new KV locations into the rows of the requests that they belong to."""
    for row, columns, flat in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, columns] = out_cache_loc[flat].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Read the KV locations of the requests' spans into one flat tensor."""
    for row, columns, flat in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[flat] = req_to_token[row, columns].to(out_cache_loc.dtype)


def __getattr__(name: str) -> Any:
    if not name.endswith("_cpu"):
        raise AttributeError(f"the stand-in for sgl_kernel has no {name}")

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"the stand-in for sgl_kernel does not compute {name}")

    missing.__name__ = name
    return missing
