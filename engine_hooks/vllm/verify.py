"""Proves that this vLLM has what the plugin hooks, and tells why the plugin stays passive where it must.

``python -m engine_hooks.vllm.verify`` prints what is found and what is missing here. The version is the module's
own: the distribution has several names.
"""

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from engine_hooks.engine import verify as shared
from engine_hooks.engine.targets import Feature
from engine_hooks.engine.verify import DISAGGREGATED, Problem
from engine_hooks.vllm.targets import KNOWN_DIFFERENCES, SUPPORTED_VERSIONS, TARGETS

RUST_VARIABLE = "VLLM_USE_RUST_FRONTEND"
# These carry contexts from engine to engine whatever the role is called; others keep what one engine has computed.
_BETWEEN_ENGINES = frozenset(
    {"MooncakeConnector", "MoRIIOConnector", "NixlConnector", "NixlPullConnector", "NixlPushConnector"}
)
_PINNED = "FullAttentionManager"  # the only one that keeps every block of a request, which our keys count on


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
    role = getattr(transfer, "kv_role", None)
    if role in ("kv_producer", "kv_consumer"):
        return f"kv_role={role} is not supported yet: {DISAGGREGATED}"
    between = sorted(_BETWEEN_ENGINES.intersection(_connectors(transfer)))
    if between:
        return f"kv_connector={between[0]} is not supported yet: {DISAGGREGATED}"
    return _unproven_parallel(getattr(vllm_config, "parallel_config", None))


def no_pins(scheduler: Any) -> str:
    """Why contexts cannot be pinned or freed by name in this scheduler; empty if they can."""
    groups = len(scheduler.kv_cache_config.kv_cache_groups)
    if groups != 1:
        return f"the model has {groups} KV cache groups, and only one is supported yet"
    managers = getattr(scheduler.kv_cache_manager.coordinator, "single_type_managers", ())
    kinds = ", ".join(type(each).__name__ for each in managers) or "what cannot be told"
    if kinds != _PINNED:
        return f"the blocks are managed by {kinds}, and only full attention is supported yet"
    pool = scheduler.kv_cache_manager.block_pool
    if not pool.enable_caching:
        return "prefix caching is off"
    if getattr(pool, "hash_block_size", scheduler.block_size) != scheduler.block_size:
        return f"blocks of {scheduler.block_size} tokens are hashed by {pool.hash_block_size}"
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
    """How many data-parallel ranks the server has; 1 for one without."""
    size = getattr(args, "data_parallel_size", None)
    return size if isinstance(size, int) else 1


def unproven_server(args: Any) -> str:
    """Why the gate stays passive with these server arguments; empty if it need not.

    Ranks are told apart and chosen where this one server starts them all and sends each its requests.
    """
    ranks = ranks_of(args)
    if ranks < 2:
        return ""
    for name in ("data_parallel_external_lb", "data_parallel_hybrid_lb", "data_parallel_multi_port_external_lb"):
        if getattr(args, name, False):
            return f"data_parallel_size={ranks} with {name} is not supported yet: others choose the rank"
    if getattr(args, "data_parallel_rank", None) is not None:
        return f"data_parallel_size={ranks}, of which this server is one rank, is not supported yet"
    if getattr(args, "data_parallel_size_local", None) not in (None, ranks):
        return f"data_parallel_size={ranks} on several hosts is not supported yet"
    if getattr(args, "data_parallel_backend", "mp") != "mp":
        return f"data_parallel_size={ranks} with the backend {args.data_parallel_backend} is not supported yet"
    if getattr(args, "enable_elastic_ep", False):
        return f"data_parallel_size={ranks} with ranks that come and go is not supported yet"
    return ""


def _unproven_parallel(config: Any) -> str:
    """Of a rank's own configuration: it names the others only where all step together."""
    size = getattr(config, "data_parallel_size", None)
    if isinstance(size, int) and size > 1:
        return f"data_parallel_size={size} is not supported yet where all ranks step together, for experts"
    return ""


def main() -> int:
    """Print the report for operators; 0 if every feature works here."""
    supported, known = SUPPORTED_VERSIONS, KNOWN_DIFFERENCES
    return shared.print_report("vLLM", vllm_version(), TARGETS, supported=supported, known_differences=known)


if __name__ == "__main__":
    sys.exit(main())
