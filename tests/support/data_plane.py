"""The real Envoy before small engines: as the product configures it, and with one filter for all."""

import asyncio
import hashlib
import json
import re
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

from controlplane.fleet.envoy import DataPlane, write_endpoints
from controlplane.fleet.roster import Engine
from support.daemon_process import eventually
from support.envoy import EnvoyProcess
from support.ports import free_port, is_listening

_HTTP = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_EXT_PROC = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
_ROUTER = {
    "name": "envoy.filters.http.router",
    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
}
_START_TIMEOUT_S = 240.0
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
        if request.method == "POST":
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
async def own_envoy(
    folder: Path, pickers: Sequence[int], engines: Sequence[Engine], tries: int = 0
) -> AsyncIterator[str]:
    """An Envoy as the product configures it; yields its URL once it sees all pickers.

    ``tries``: how often it asks pickers for a turn, before it goes around them, if not as in the product.
    """
    write_endpoints(folder / "eds.json", engines)
    plane = DataPlane(
        pickers=tuple(f"127.0.0.1:{port}" for port in pickers),
        endpoints=folder / "eds.json",
        listen=f"127.0.0.1:{free_port()}",
        admin=f"127.0.0.1:{free_port()}",
    )
    process = EnvoyProcess(folder, plane)
    if tries:
        config = (folder / "envoy.yaml").read_text()
        for setting in ("update_frequency: 3", "num_retries: 4\n"):
            assert config.count(setting) == 1
            config = config.replace(setting, re.sub(r"\d", str(tries), setting))
        (folder / "envoy.yaml").write_text(config)
    try:
        await asyncio.to_thread(process.start)

        async def is_ready() -> bool:
            seen = [await asyncio.to_thread(process.healthy, cluster) for cluster in ("pickers", "engines")]
            return [len(each) for each in seen] == [len(pickers), len(engines)]

        await eventually(is_ready, what="Envoy sees pickers and engines", timeout_s=_START_TIMEOUT_S)
        yield process.url
    finally:
        process.stop()


@asynccontextmanager
async def envoy(folder: Path, picker: int, engines: Sequence[Engine], mode: str) -> AsyncIterator[str]:
    """An Envoy with one filter, whose picker has the request's body in that way; yields its URL once it sees it."""
    for _ in range(_MOST_STARTS):  # whatever else runs here may take a port that was free
        front, admin = free_port(), free_port()
        config = {
            "admin": {"address": _address(f"127.0.0.1:{admin}")},
            **_resources(front, picker, engines, mode),
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


def _resources(front: int, picker: int, engines: Sequence[Engine], mode: str) -> dict[str, Any]:
    picker_hosts = [{"lb_endpoints": [{"endpoint": {"address": _address(f"127.0.0.1:{picker}")}}]}]
    engine_hosts = [{"lb_endpoints": [{"endpoint": {"address": _address(each.address)}} for each in engines]}]
    return {
        "static_resources": {
            "listeners": [_listener(front, [_asking(mode), _ROUTER])],
            "clusters": [
                _cluster("pickers", picker_hosts, **_PICKERS),
                _cluster("engines", engine_hosts, **_OVERRIDE),
            ],
        }
    }


def _asking(mode: str) -> Any:
    modes = {"response_header_mode": "SEND", "response_trailer_mode": "SEND", "request_header_mode": "SEND"}
    if is_duplex := mode == "FULL_DUPLEX_STREAMED":
        modes["request_trailer_mode"] = "SEND"
    config = {
        "grpc_service": {"timeout": "0s", "envoy_grpc": {"cluster_name": "pickers"}},
        "processing_mode": {"request_body_mode": mode, **modes},
        "allow_mode_override": not is_duplex,
        "failure_mode_allow": False,
        "message_timeout": "10s",
        "max_message_timeout": "3600s",
    }
    return {"name": "envoy.filters.http.ext_proc", "typed_config": {"@type": _EXT_PROC, **config}}


def _listener(port: int, filters: list[Any]) -> Any:
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}
    manager = {
        "@type": _HTTP,
        "stat_prefix": "asking",
        "stream_idle_timeout": "0s",
        "request_timeout": "0s",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": filters,
    }
    return {
        "name": "asking",
        "address": _address(f"127.0.0.1:{port}"),
        "per_connection_buffer_limit_bytes": _MOST_BODY,
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }


def _cluster(name: str, hosts: list[Any], **more: Any) -> Any:
    return {"name": name, "type": "STATIC", "load_assignment": {"cluster_name": name, "endpoints": hosts}, **more}


def _address(address: str) -> Any:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


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
