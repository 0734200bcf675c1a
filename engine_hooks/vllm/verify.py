"""Proves that this vLLM has what the plugin hooks, and tells why the plugin stays passive where it must.

``python -m engine_hooks.vllm.verify`` prints what is found and what is missing here. The version is the module's
own: the distribution has several names.
"""

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from controlplane.core.model.events import DECODE, PREFILL
from engine_hooks.engine import verify as shared
from engine_hooks.engine.targets import Feature
from engine_hooks.engine.verify import Problem
from engine_hooks.vllm.targets import SUPPORTED_VERSIONS, TARGETS

_SIDES = {"kv_producer": PREFILL, "kv_consumer": DECODE}
RUST_VARIABLE = "VLLM_USE_RUST_FRONTEND"
# These carry contexts from engine to engine whatever the role is called; others keep what one engine has computed.
_BETWEEN_ENGINES = frozenset(
    {"MooncakeConnector", "MoRIIOConnector", "NixlConnector", "NixlPullConnector", "NixlPushConnector"}
)


def vllm_version() -> str:
    """The installed version; empty where there is none."""
    try:
        return str(importlib.import_module("vllm").__version__)
    except (ImportError, AttributeError):
        return ""


def report_problems(problems: Iterable[Problem]) -> frozenset[Feature]:
    """Log each problem in one line; return the features that cannot work."""
    return shared.report_problems(problems, f"vLLM {vllm_version() or '?'}")


def unproven_engine(vllm_config: Any, port: str) -> str:
    """Why the engine's side stays passive with this configuration; empty if it need not.

    ``port``: of the HTTP server that it belongs to, empty for none.
    """
    if not port:
        return "no HTTP server of vLLM's own belongs to this engine: nobody could name programs or hold turns"
    transfer = getattr(vllm_config, "kv_transfer_config", None)
    between = sorted(_BETWEEN_ENGINES.intersection(_connectors(transfer)))
    if between and not disaggregation(vllm_config):
        first, second = _SIDES
        return (
            f"kv_connector={between[0]} does not say whether this engine prefills or decodes: "
            f'"kv_role": "{first}" or "{second}" does'
        )
    if getattr(getattr(vllm_config, "parallel_config", None), "enable_elastic_ep", False):
        return "data-parallel ranks that come and go are not supported yet"
    return ""


def disaggregation(vllm_config: Any) -> str:
    """``PREFILL`` for an engine whose contexts another decodes, ``DECODE`` for that one; else empty."""
    return _SIDES.get(str(getattr(getattr(vllm_config, "kv_transfer_config", None), "kv_role", None)), "")


def no_pins(scheduler: Any) -> str:
    """Why contexts cannot be pinned or freed by name in this scheduler; empty if they can."""
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    if not pool.enable_caching:
        return "prefix caching is off"
    managers = getattr(manager.coordinator, "single_type_managers", ())
    if not managers:
        return "which KV cache groups the model has cannot be told"
    for number, each in enumerate(managers):
        if getattr(each, "block_pool", pool) is not pool:
            return f"KV cache group {number} ({type(each).__name__}) keeps its blocks in a pool of its own"
    return ""


def _connectors(transfer: Any) -> Iterator[str]:
    """The names of the configured connector, and of those that it is made of."""
    name = getattr(transfer, "kv_connector", None)
    if name:
        yield name
    extra = getattr(transfer, "kv_connector_extra_config", None)
    parts = extra.get("connectors") if isinstance(extra, Mapping) else None
    for part in parts if isinstance(parts, Sequence) else ():
        if isinstance(part, Mapping) and isinstance(part.get("kv_connector"), str):
            yield part["kv_connector"]


def no_gate(args: Any) -> str:
    """Why no gate can be in the server with these arguments; empty if one can. Its scheduler is steered anyway.

    vLLM asks for the variable in this command only.
    """
    if os.environ.get(RUST_VARIABLE, "0") in ("", "0") or getattr(args, "subparser", None) != "serve":
        return ""
    return "vLLM's Rust front end has no place for one; `penstock gate --upstream URL` runs one before it"


def ranks_of(args: Any) -> int:
    """How many data-parallel ranks the server sends requests to; 1 where it is one of them, or there are none.

    It has those of its host where others balance over hosts, whether or not all ranks step together, for experts.
    """
    size, here = getattr(args, "data_parallel_size", None), getattr(args, "data_parallel_size_local", None)
    if not isinstance(size, int):
        return 1
    if getattr(args, "data_parallel_external_lb", False) or getattr(args, "data_parallel_rank", None) is not None:
        return 1
    return here if _balances_here(args) and isinstance(here, int) else size


def _balances_here(args: Any) -> bool:
    start = getattr(args, "data_parallel_start_rank", None)
    return start is not None or bool(getattr(args, "data_parallel_hybrid_lb", False))


def unproven_server(args: Any) -> str:
    """Why the gate stays passive with these server arguments; empty if it need not.

    Ranks are told apart and chosen where this server starts all those that it sends requests to.
    """
    ranks = ranks_of(args)
    if ranks < 2:
        return ""
    if getattr(args, "data_parallel_size_local", None) not in (None, ranks):
        return f"data_parallel_size={ranks} on several hosts is not supported yet"
    if getattr(args, "data_parallel_backend", "mp") != "mp":
        return f"data_parallel_size={ranks} with the backend {args.data_parallel_backend} is not supported yet"
    if getattr(args, "enable_elastic_ep", False):
        return f"data_parallel_size={ranks} with ranks that come and go is not supported yet"
    return ""


def main() -> int:
    """Print the report for operators; 0 if every feature works here."""
    return shared.print_report("vLLM", vllm_version(), TARGETS, supported=SUPPORTED_VERSIONS)


if __name__ == "__main__":
    sys.exit(main())
