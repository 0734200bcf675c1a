"""The processes of one SGLang server: its front ends, and its data-parallel ranks, each with a pool of its own."""

from typing import Any

from controlplane.core.model.events import PREFILL

CHOSEN = "routed_dp_rank"  # of a request: the rank that it is sent to


def ranks_of(server_args: Any) -> int:
    """How many there are; 1 for a server without."""
    size = getattr(server_args, "dp_size", 1)
    return size if isinstance(size, int) else 1


def rank_of_scheduler(scheduler: Any) -> int | None:
    """Which of them this scheduler is; None where there is one only."""
    if ranks_of(scheduler.server_args) < 2:
        return None
    from sglang.srt.runtime_context import get_parallel

    return int(get_parallel().dp_rank)


def no_gate(server_args: Any) -> str:
    """Why no gate can be in the server with these arguments; empty if one can. Its scheduler is steered anyway.

    Several HTTP processes are started by importing the application anew, and plugins are not loaded there. A router
    sends each turn to a prefill and a decode server at once: one that waited here would hold memory there, which
    the turns that it waits for may need.
    """
    if disaggregation(server_args) == PREFILL:
        return (
            "its decode server has each turn as soon as this prefill server, and keeps memory for one that waits; "
            "`penstock gate --upstream URL` runs one before their router"
        )
    if workers := several_workers(server_args):
        where = f"in {workers} tokenizer workers SGLang loads no plugin"
        return f"{where}; `penstock gate --upstream URL` runs one before it"
    return ""


def several_workers(server_args: Any) -> int:
    """How many HTTP processes there are beside the first; 0 where that one serves alone."""
    workers = getattr(server_args, "tokenizer_worker_num", 1)
    return workers if isinstance(workers, int) and workers > 1 else 0


def disaggregation(server_args: Any) -> str:
    """``PREFILL`` or ``DECODE``; empty for a server that does both."""
    mode = getattr(server_args, "disaggregation_mode", None)
    return "" if mode in (None, "null") else str(mode)


def unproven_ranks(server_args: Any) -> str:
    """Why the plugin stays passive with this server's ranks; empty if it need not."""
    ranks = ranks_of(server_args)
    if ranks < 2:
        return ""
    if getattr(server_args, "enable_dp_attention", False):
        why = "all ranks would hear rank 0's word, and each has a pool of its own and needs its own"
        return f"dp_size={ranks} with enable_dp_attention is not supported yet: {why}"
    for name in ("tp_size", "pp_size"):
        size = getattr(server_args, name, 1)
        if isinstance(size, int) and size > 1:
            return f"dp_size={ranks} together with {name}={size} is not supported yet: it has not been tried"
    if getattr(server_args, "max_ep_size", None) or getattr(server_args, "elastic_ep_backend", None):
        return (
            f"dp_size={ranks} with elastic ranks is not supported yet: a turn sent to one that left ends the server"
        )
    from sglang.srt.managers.io_struct import GenerateReqInput

    if not hasattr(GenerateReqInput, CHOSEN):
        return f"dp_size={ranks}, and this SGLang's requests cannot name the rank that they are sent to"
    return ""
