"""A NATS cluster on one machine, for trials of what a site runs on several: its settings and how to start it.

Whoever starts the servers keeps them running. Of three any one may be away: a stream of three copies goes on. One
that leads a stream is replaced within 4 to 9 s.
"""

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.daemon.bus.nats_config import write_secret
from controlplane.daemon.bus.nats_server import binary
from controlplane.daemon.process.ports import free_ports

_HOST = "127.0.0.1"
_USER = "fleet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterServer:
    """One server of the cluster: its name, where clients reach it, and what starts it."""

    name: str
    port: int
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """The servers, and the URL that names them all. What it holds lies in one folder."""

    servers: tuple[ClusterServer, ...]
    url: str

    @classmethod
    def make(cls, folder: Path, *, count: int = 3) -> "LocalCluster":
        """Write the settings of ``count`` servers, on free ports. Raises ``OSError`` and ``EngineUnavailable``."""
        folder.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2 * count)
        password = secrets.token_urlsafe(24)
        own, others = ports[:count], ports[count:]
        routes = [f"nats-route://{_USER}:{password}@{_HOST}:{port}" for port in others]
        made = []
        for number, (port, route_port) in enumerate(zip(own, others, strict=True), 1):
            name = f"nats-{number}"
            path = (folder / f"{name}.conf").absolute()
            settings = _settings(name, port, route_port, folder.absolute() / name, routes, password)
            write_secret(path, json.dumps(settings, indent=2) + "\n")
            made.append(ClusterServer(name=name, port=port, command=(str(binary()), "-c", str(path))))
        hosts = ",".join(f"{_HOST}:{port}" for port in own)
        return cls(servers=tuple(made), url=f"nats://{_USER}:{password}@{hosts}")


def _settings(
    name: str, port: int, route_port: int, store: Path, routes: list[str], password: str
) -> dict[str, Any]:
    proof = {"user": _USER, "password": password}
    return {
        "server_name": name,
        "host": _HOST,
        "port": port,
        "authorization": proof,
        "jetstream": {
            "store_dir": str(store),
            "max_memory_store": 64 << 20,
            "max_file_store": 4 << 30,
            # A lease is a promise: what a server acknowledged must survive its machine's crash.
            "sync_interval": "always",
        },
        "cluster": {
            "name": _USER,
            "listen": f"{_HOST}:{route_port}",
            "authorization": proof,
            "routes": routes,
            "no_advertise": True,  # clients know them all, and hand no password on to one that they hear of
        },
    }
