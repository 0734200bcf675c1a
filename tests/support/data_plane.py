"""The real Envoy before small engines, in each of the ways in which a picker is asked."""

import asyncio
import hashlib
import json
import subprocess
import sysconfig
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from controlplane.fleet.roster import Engine
from support.ports import free_port, is_listening

_HTTP = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_EXT_PROC = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
_ROUTER = {
    "name": "envoy.filters.http.router",
    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
}
_START_TIMEOUT_S = 60.0
_MOST_STARTS = 5
_MOST_BODY = 33_554_432
TOKENS = 20


@dataclass
class EngineDouble:
    """An engine that tells whom it answered, in one piece or as a stream; no model, real HTTP."""

    engine: Engine
    seen: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        self.seen.append(dict(request.headers))
        if request.headers.get("x-test-stream"):
            stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await stream.prepare(request)
            for number in range(TOKENS):
                await stream.write(b"data: %d\n\n" % number)
            await stream.write_eof()
            return stream
        told = {"place": self.engine.place, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return web.json_response(told, headers={"x-penstock-hold-ms": "1000007"})


@asynccontextmanager
async def engines(count: int) -> AsyncIterator[list[EngineDouble]]:
    """So many engines that listen."""
    made, runners = [], []
    try:
        for number in range(count):
            app = web.Application(client_max_size=1 << 30)
            runner = web.AppRunner(app, access_log=None)
            double = EngineDouble(Engine(place=f"node-{number}/engine-1", address=""))
            app.router.add_route("*", "/{path:.*}", double.answer)
            await runner.setup()
            runners.append(runner)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            double.engine = replace(double.engine, address="127.0.0.1:{1}".format(*runner.addresses[0]))
            made.append(double)
        yield made
    finally:
        for runner in runners:
            await runner.cleanup()


@asynccontextmanager
async def envoy(folder: Path, pickers: Sequence[int], engines: Sequence[Engine], **ways: Any) -> AsyncIterator[str]:
    """An Envoy before these pickers and engines, which asks in that way; yields its URL once it sees a picker."""
    for _ in range(_MOST_STARTS):  # whatever else runs here may take a port that was free
        front, admin = free_port(), free_port()
        config = {
            "admin": {"address": _address(f"127.0.0.1:{admin}")},
            **_resources(front, pickers, engines, **ways),
        }
        (folder / "envoy.json").write_text(json.dumps(config))
        command = [str(Path(sysconfig.get_path("scripts")) / "envoy"), "-c", str(folder / "envoy.json")]
        command += ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
        with (folder / "envoy.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: ASYNC220 - it waits for nothing
        try:
            if await _is_ready(process, front, admin):
                yield f"http://127.0.0.1:{front}"
                return
        finally:
            process.kill()
            process.wait()
    raise AssertionError((folder / "envoy.log").read_text()[-2000:])


async def _is_ready(process: "subprocess.Popen[bytes]", front: int, admin: int) -> bool:
    """Wait until it is, or has ended."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if is_listening(front) and await asyncio.to_thread(_sees_a_picker, admin):
            return True
        await asyncio.sleep(0.02)
    return False


def _sees_a_picker(admin: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/clusters?format=json", timeout=5) as answer:
            clusters = {each["name"]: each for each in json.load(answer).get("cluster_statuses", ())}
    except OSError:
        return False
    hosts = clusters.get("pickers", {}).get("host_statuses", ())
    return any(not _failed(host["health_status"]) for host in hosts)


def _failed(status: dict[str, Any]) -> bool:
    return any(value is True for name, value in status.items() if name.startswith("failed_"))


def _resources(
    front: int, pickers: Sequence[int], engines: Sequence[Engine], *, mode: str, splits: bool, again: bool = False
) -> dict[str, Any]:
    """``splits``: one filter asks and another watches; else one does both. ``again``: a lost picker is no end."""
    asking = front if not again else free_port()
    listeners = [
        _listener("asking", asking, [_ASKED, *_ask_filters(mode, splits)], _to_engines(splits), marks=again)
    ]
    if again:
        listeners.append(_listener("front", front, [_ROUTER], _TO_INNER))
    inner = [{"lb_endpoints": [{"endpoint": {"address": _address(f"127.0.0.1:{asking}")}}]}]
    picker_hosts = [
        {"priority": number, "lb_endpoints": [{"endpoint": {"address": _address(f"127.0.0.1:{port}")}}]}
        for number, port in enumerate(pickers)
    ]
    engine_hosts = [{"lb_endpoints": [{"endpoint": {"address": _address(each.address)}} for each in engines]}]
    return {
        "static_resources": {
            "listeners": listeners,
            "clusters": [
                _cluster("inner", inner),
                _cluster("pickers", picker_hosts, **_PICKERS),
                _cluster("engines", engine_hosts, **_OVERRIDE),
            ],
        }
    }


def _ask_filters(mode: str, splits: bool) -> list[Any]:
    watched = {"response_header_mode": "SEND", "response_trailer_mode": "SEND", "request_header_mode": "SEND"}
    ignored = {"response_header_mode": "SKIP", "response_trailer_mode": "SKIP", "request_header_mode": "SEND"}
    asks = {"request_body_mode": mode, **(ignored if splits else watched)}
    if mode == "FULL_DUPLEX_STREAMED":
        asks["request_trailer_mode"] = "SEND"
    asking = {
        "grpc_service": _grpc("asking" if splits else ""),
        "processing_mode": asks,
        "allow_mode_override": mode != "FULL_DUPLEX_STREAMED",
        "failure_mode_allow": False,
        "status_on_error": {"code": "ServiceUnavailable"},
        "message_timeout": "10s",
        "max_message_timeout": "3600s",
    }
    filters = [_filter("envoy.filters.http.ext_proc", asking)]
    if splits:
        watching = {
            "grpc_service": _grpc("watching"),
            "processing_mode": watched,
            "observability_mode": True,
            "deferred_close_timeout": "0.02s",
            "response_attributes": ["upstream.address"],
        }
        filters.append(_filter("watching", watching))
    return [*filters, _ROUTER]


def _filter(name: str, config: dict[str, Any]) -> Any:
    return {"name": name, "typed_config": {"@type": _EXT_PROC, **config}}


def _grpc(role: str) -> Any:
    retries = {"retry_on": "connect-failure,refused-stream,reset-before-request,unavailable", "num_retries": 2}
    told = {"initial_metadata": [{"key": "x-penstock-role", "value": role}]} if role else {}
    return {"timeout": "0s", "envoy_grpc": {"cluster_name": "pickers", "retry_policy": retries}, **told}


def _listener(name: str, port: int, filters: list[Any], route: Any, *, marks: bool = False) -> Any:
    manager = {
        "@type": _HTTP,
        "stat_prefix": name,
        "stream_idle_timeout": "0s",
        "request_timeout": "0s",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], **route}]},
        "http_filters": filters,
    }
    if marks:
        manager["local_reply_config"] = _MARKS
    return {
        "name": name,
        "address": _address(f"127.0.0.1:{port}"),
        "per_connection_buffer_limit_bytes": _MOST_BODY,
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }


def _cluster(name: str, hosts: list[Any], **more: Any) -> Any:
    return {"name": name, "type": "STATIC", "load_assignment": {"cluster_name": name, "endpoints": hosts}, **more}


def _address(address: str) -> Any:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _to_engines(splits: bool) -> Any:
    told = ("x-penstock-hold-ms", "x-penstock-turn-id")
    added = [
        {"append_action": "ADD_IF_ABSENT", "header": {"key": name, "value": f"%REQ({name})%"}} for name in told
    ]
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}
    return {"routes": [route], **({"response_headers_to_add": added} if splits else {})}


_ASKED = {
    "name": "asked",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
        "mutations": {
            "request_mutations": [
                {
                    "append": {
                        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                        "header": {"key": "x-penstock-asked", "value": "%START_TIME(%s.%3f)%"},
                    }
                }
            ]
        },
    },
}
_TO_INNER = {
    "include_request_attempt_count": True,
    "request_headers_to_add": [
        {
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            "header": {"key": "x-penstock-arrived", "value": "%START_TIME(%s.%3f)%"},
        }
    ],
    "routes": [
        {
            "match": {"prefix": "/"},
            "route": {
                "cluster": "inner",
                "timeout": "0s",
                "retry_policy": {
                    "retry_on": "retriable-headers",
                    "retriable_headers": [{"name": "x-penstock-again", "present_match": True}],
                    "num_retries": 40,
                    "retry_back_off": {"base_interval": "0.2s", "max_interval": "1s"},
                },
            },
        }
    ],
}
_CEL = "type.googleapis.com/envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
_MARKS = {
    "mappers": [
        {
            "filter": {
                "extension_filter": {
                    "name": "cel",
                    "typed_config": {
                        "@type": _CEL,
                        "expression": "response.code_details.startsWith('ext_proc_error')",
                    },
                }
            },
            "headers_to_add": [{"header": {"key": "x-penstock-again", "value": "1"}}],
        }
    ]
}
_H2 = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_PICKERS = {
    "connect_timeout": "0.5s",
    "typed_extension_protocol_options": {
        _H2: {"@type": f"type.googleapis.com/{_H2}", "explicit_http_config": {"http2_protocol_options": {}}}
    },
    "circuit_breakers": {"thresholds": [{"max_requests": 100_000, "max_pending_requests": 100_000}]},
    "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
    "health_checks": [
        {
            "timeout": "2s",
            "interval": "0.2s",
            "no_traffic_interval": "0.2s",
            "unhealthy_threshold": 1,
            "healthy_threshold": 1,
            "grpc_health_check": {},
        }
    ],
}
_POLICY = "envoy.extensions.load_balancing_policies"
_OVERRIDE = {
    "circuit_breakers": {
        "thresholds": [{"max_connections": 100_000, "max_pending_requests": 100_000, "max_requests": 100_000}]
    },
    "load_balancing_policy": {
        "policies": [
            {
                "typed_extension_config": {
                    "name": "envoy.load_balancing_policies.override_host",
                    "typed_config": {
                        "@type": f"type.googleapis.com/{_POLICY}.override_host.v3.OverrideHost",
                        "override_host_sources": [{"header": "x-gateway-destination-endpoint"}],
                        "fallback_policy": {
                            "policies": [
                                {
                                    "typed_extension_config": {
                                        "name": "envoy.load_balancing_policies.round_robin",
                                        "typed_config": {
                                            "@type": f"type.googleapis.com/{_POLICY}.round_robin.v3.RoundRobin"
                                        },
                                    }
                                }
                            ]
                        },
                    },
                }
            }
        ]
    },
}
