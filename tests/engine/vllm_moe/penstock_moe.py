"""A plugin of vLLM for the engine tests: what its communicator for CPUs lacks for experts on several ranks.

Ranks whose experts are shared compute each step together: they gather all tokens, and scatter what came of them.
vLLM has both for GPUs only; here they are sent by gloo, and the ranks are vLLM's own.
"""

from collections.abc import Sequence
from typing import Any


def register() -> None:
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    CpuCommunicator.all_gatherv = all_gatherv
    CpuCommunicator.reduce_scatterv = reduce_scatterv


def all_gatherv(communicator: Any, input_: Any, dim: int = 0, sizes: Sequence[int] | None = None) -> Any:
    """Each rank's rows, in the order of ranks; ``sizes`` says how many each has."""
    if isinstance(input_, list):
        return [all_gatherv(communicator, each, dim, sizes) for each in input_]
    import torch

    assert dim == 0
    sizes = sizes or [input_.shape[0]] * communicator.world_size
    padded = input_.new_zeros((max(sizes), *input_.shape[1:]))  # gloo gathers alike shapes
    padded[: input_.shape[0]] = input_
    gathered = [torch.empty_like(padded) for _ in sizes]
    torch.distributed.all_gather(gathered, padded, group=communicator.device_group)
    return torch.cat([rows[:size] for rows, size in zip(gathered, sizes, strict=True)])


def reduce_scatterv(communicator: Any, input_: Any, dim: int = -1, sizes: Sequence[int] | None = None) -> Any:
    """This rank's rows of the sum over all ranks."""
    import torch

    assert dim == 0
    sizes = sizes or [input_.shape[0] // communicator.world_size] * communicator.world_size
    summed = input_.clone()
    torch.distributed.all_reduce(summed, group=communicator.device_group)
    begin = sum(sizes[: communicator.rank_in_group])
    return summed[begin : begin + sizes[communicator.rank_in_group]]
