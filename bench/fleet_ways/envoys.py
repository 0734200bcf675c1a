"""Envoy's configuration for its own ways of spreading requests, and the log that tells where each request went."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from controlplane.lab.load.client import SESSION_HEADER

_HCM = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
_LOG = "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog"
POLICIES = {"round robin": "ROUND_ROBIN", "least request": "LEAST_REQUEST", "hash by session": "RING_HASH"}


def access_log(path: Path) -> list[dict[str, Any]]:
    """A line for each request: its program, and the engine that had it."""
    line = {
        "program": f"%REQ({SESSION_HEADER})%",
        "engine": "%UPSTREAM_HOST%",
        "status": "%RESPONSE_CODE%",
        "flags": "%RESPONSE_FLAGS%",
    }
    return [
        {
            "name": "file",
            "typed_config": {"@type": _LOG, "path": str(path), "log_format": {"json_format": line}},
        }
    ]


def own_way(policy: str, listen: int, engines: Sequence[int], log: Path) -> str:
    """A bootstrap that spreads requests by one of ``POLICIES``."""
    route = {
        "cluster": "engines",
        "timeout": "0s",
        "hash_policy": [{"header": {"header_name": SESSION_HEADER}}],
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream,reset-before-request",
            "num_retries": 2,
            "retry_host_predicate": [
                {
                    "name": "previous_hosts",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3"
                        ".PreviousHostsPredicate"
                    },
                }
            ],
            "host_selection_retry_max_attempts": 3,
        },
    }
    manager = {
        "@type": _HCM,
        "stat_prefix": "front",
        "stream_idle_timeout": "0s",
        "request_timeout": "0s",
        "access_log": access_log(log),
        "route_config": {
            "virtual_hosts": [
                {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}
            ]
        },
        "http_filters": [{"name": "router", "typed_config": {"@type": _ROUTER}}],
    }
    cluster = {
        "name": "engines",
        "type": "STATIC",
        "connect_timeout": "1s",
        "lb_policy": POLICIES[policy],
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/health"},
            }
        ],
        "circuit_breakers": {"thresholds": [{"max_connections": 100000, "max_requests": 100000}]},
        "load_assignment": {
            "cluster_name": "engines",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _at(port)}} for port in engines]}],
        },
    }
    return json.dumps(
        {
            "static_resources": {
                "listeners": [
                    {
                        "name": "front",
                        "address": _at(listen),
                        "filter_chains": [{"filters": [{"name": "hcm", "typed_config": manager}]}],
                    }
                ],
                "clusters": [cluster],
            }
        }
    )


def bare_envoy(port: int, engine: int) -> dict[str, Any]:
    """An Envoy that does nothing but carry."""
    types = "type.googleapis.com/envoy.extensions.filters"

    route = {"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bare",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "router", "typed_config": {"@type": f"{types}.http.router.v3.Router"}}],
    }
    hosts = [{"lb_endpoints": [{"endpoint": {"address": _at(engine)}}]}]
    listener = {
        "name": "bare",
        "address": _at(port),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    cluster = {
        "name": "engine",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "engine", "endpoints": hosts},
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def with_log(bootstrap: str, log: Path) -> str:
    """A fleet's bootstrap, whose listeners that go to engines write where each request went."""
    told = yaml.safe_load(bootstrap)
    for listener in told["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            for each in chain["filters"]:
                manager = each["typed_config"]
                routes = [r for host in manager["route_config"]["virtual_hosts"] for r in host["routes"]]
                if any(route["route"].get("cluster") == "engines" for route in routes):
                    manager["access_log"] = access_log(log)
    return json.dumps(told)


def _at(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Of the turns that an engine answered: how many came behind another of their program, on another engine."""

    turns: int
    later: int
    moved: int
    cut: int  # answers that broke off
    busiest: float  # share of the turns that one engine had

    @property
    def ratio(self) -> float:
        """Share of the later turns."""
        return self.moved / self.later if self.later else 0.0


def read_moves(log: Path) -> Moves:
    """What the log tells."""
    homes: dict[str, str] = {}
    by_engine: Counter[str] = Counter()
    later = moved = cut = 0
    for line in log.read_text().splitlines():
        told = json.loads(line)
        program, engine = told.get("program"), told.get("engine")
        if not program or not engine or str(told.get("status")) != "200":
            continue
        if told.get("flags") not in (None, "-"):
            cut += 1
            continue
        by_engine[engine] += 1
        later += program in homes
        moved += homes.get(program, engine) != engine
        homes[program] = engine
    turns = by_engine.total()
    busiest = max(by_engine.values(), default=0) / turns if turns else 0.0
    return Moves(turns=turns, later=later, moved=moved, cut=cut, busiest=busiest)
