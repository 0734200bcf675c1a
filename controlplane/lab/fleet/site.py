"""A site on one machine: NATS servers, engines, fleet daemons and Envoys, each a process of its own.

The engines are doubles, unless whoever makes the site says how others are started.
"""

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from controlplane.core.model.errors import EngineUnavailable
from controlplane.daemon.process.ports import free_ports
from controlplane.fleet.envoy import DataPlane, binary, bootstrap, write_endpoints
from controlplane.fleet.roster import Engine
from controlplane.lab.fleet.nats_cluster import LocalCluster
from controlplane.lab.fleet.processes import Kind, Process, listens
from controlplane.transport.loopback import channel_options, open_url

_SERVING = health_pb2.HealthCheckResponse.SERVING
_GOVERNED_WITHIN_S = 180.0
_MOST_ENDS = 3  # of a process that is not ready yet: a port that somebody took is free again after one


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How an engine is started. Envoy looks at its ``/health``, and so does who waits for it."""

    command: tuple[str, ...]
    place: str  # as it calls itself, NODE/ROLE
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_within_s: float = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOptions:
    """How large a site is, and what its engines are.

    ``real``: how each engine is started, by its node and the port where it is to serve, where they are no doubles.
    """

    engines: int = 3  # where they are doubles
    real: tuple[Callable[[str, int], Launch], ...] = ()
    daemons: int = 2
    envoys: int = 2
    nats_servers: int = 3
    pool_tokens: int = 64_000  # of each engine
    tokens_per_word: int = 64
    time_scale: float = 20.0  # doubles run this much faster than real ones
    double: tuple[str, ...] = ()  # what else each double is told, on its command line
    lease_ttl_s: float = 12.0
    preset: str = "penstock"
    more: str = ""  # of the daemons' configuration, as TOML
    otlp_endpoint: str = ""  # of a collector, which Envoys and daemons tell of each turn


class Site:
    """The processes by name. All they keep lies in ``folder``."""

    def __init__(self, folder: Path, options: SiteOptions | None = None) -> None:
        self.folder, self.options = folder, options or SiteOptions()
        self.endpoints = folder / "eds.json"
        self.nats_url = ""
        self.processes: dict[str, Process] = {}
        self._places: dict[str, str] = {}  # what engines call themselves, by node
        self._planes: dict[str, DataPlane] = {}
        self._pages: dict[str, int] = {}  # ports of the daemons' metrics

    def of(self, kind: Kind) -> list[Process]:
        """In the order of their names."""
        return [process for process in self.processes.values() if process.kind is kind]

    @property
    def engines(self) -> list[Process]:
        """Each is named as its node is."""
        return self.of(Kind.ENGINE)

    @property
    def urls(self) -> list[str]:
        """Where clients reach each Envoy."""
        return [f"http://{envoy.address}" for envoy in self.of(Kind.ENVOY)]

    def metrics(self, daemon: Process) -> str:
        """Where that daemon's metrics are."""
        return f"http://127.0.0.1:{self._pages[daemon.name]}/metrics"

    def admin(self, envoy: Process) -> str:
        """Where that Envoy's own page is."""
        return f"http://{self._planes[envoy.name].admin}"

    # Begin and end

    def start(self, told: Callable[[str], None] = lambda _: None) -> None:
        """Return once a daemon leads and the Envoys serve. Raises ``ControlPlaneError``.

        ``told`` hears what is there.
        """
        self._lay_out()
        for kind in (Kind.NATS, Kind.ENGINE, Kind.DAEMON, Kind.ENVOY):
            for process in self.of(kind):
                process.start()
            for process in self.of(kind):
                process.wait(_MOST_ENDS)
            told(", ".join(process.name for process in self.of(kind)))
        until_s = time.monotonic() + _GOVERNED_WITHIN_S
        while not self.is_asked():
            if time.monotonic() > until_s:
                waited = f"after {_GOVERNED_WITHIN_S:g} s"
                raise EngineUnavailable(f"no fleet daemon leads and is asked by Envoy {waited}; see {self.folder}")
            time.sleep(0.1)
            self.keep()
        told("a daemon leads, and Envoy asks it")

    def keep(self) -> None:
        """Start again what ended by itself, as a supervisor does."""
        for process in self.processes.values():
            process.keep()

    def stop(self) -> None:
        """End all, those first that ask others."""
        for kind in (Kind.ENVOY, Kind.DAEMON, Kind.ENGINE, Kind.NATS):
            for process in self.of(kind):
                process.stop()

    def _lay_out(self) -> None:
        options = self.options
        cluster = LocalCluster.make(self.folder / "nats", count=options.nats_servers)
        self.nats_url = cluster.url
        for server in cluster.servers:
            self._add(server.name, Kind.NATS, server.command, server.port)
        launches = options.real or (self._double,) * options.engines
        ports = iter(free_ports(len(launches) + 2 * options.daemons + 2 * options.envoys))
        for number, launch in enumerate(launches, 1):
            self._add_engine(f"node-{number}", next(ports), launch)
        roster = [Engine(place=self._places[each.name], address=each.address) for each in self.engines]
        write_endpoints(self.endpoints, roster)
        for number in range(1, options.daemons + 1):
            self._add_daemon(f"fleet-{number}", next(ports), next(ports), roster)
        pickers = tuple(daemon.address for daemon in self.of(Kind.DAEMON))
        for number in range(1, options.envoys + 1):
            self._add_envoy(f"envoy-{number}", next(ports), next(ports), pickers)

    def _add(self, name: str, kind: Kind, command: tuple[str, ...], port: int) -> None:
        log = self.folder / f"{name}.log"
        environment = {"PENSTOCK_NATS_URL": self.nats_url}
        self.processes[name] = Process(name, kind, command, port=port, log=log, environment=environment)

    def _add_engine(self, name: str, port: int, launched: Callable[[str, int], Launch]) -> None:
        launch = launched(name, port)
        self._places[name] = launch.place
        self.processes[name] = Process(
            name,
            Kind.ENGINE,
            launch.command,
            port=port,
            log=self.folder / f"{name}.log",
            environment={**launch.environment, "PENSTOCK_NATS_URL": self.nats_url},
            is_ready=is_healthy,
            ready_within_s=launch.ready_within_s,
        )

    def _double(self, name: str, port: int) -> Launch:
        options = self.options
        words: tuple[str, ...] = ("engine-double", "--port", str(port), "--node", name, "--nats", self.nats_url)
        words += ("--time-scale", f"{options.time_scale:g}", "--tokens-per-word", str(options.tokens_per_word))
        words += ("--pool-tokens", str(options.pool_tokens), *options.double)
        return Launch(command=(sys.executable, "-m", "controlplane", *words), place=f"{name}/engine")

    def _add_daemon(self, name: str, port: int, http_port: int, roster: list[Engine]) -> None:
        state = self.folder / name
        state.mkdir(parents=True, exist_ok=True)
        config, self._pages[name] = state / "penstock.toml", http_port
        engines = [f"{engine.place}={engine.address}" for engine in roster]
        lines = [
            'node = "fleet"',
            f'preset = "{self.options.preset}"',
            f"state_dir = {json.dumps(str(state))}",
            f"time_scale = {1 if self.options.real else self.options.time_scale:g}",
            "[http]",
            f'listen = "127.0.0.1:{http_port}"',
            "[fleet]",
            f'listen = "127.0.0.1:{port}"',
            f"engines = {json.dumps(engines)}",
            f"endpoints = {json.dumps(str(self.endpoints))}",
            f"lease_ttl_s = {self.options.lease_ttl_s:g}",
            f"rank = {len(self.of(Kind.DAEMON))}",
            "[telemetry]",
            f"otlp_endpoint = {json.dumps(self.options.otlp_endpoint)}",
        ]
        config.write_text("\n".join([*lines, self.options.more]) + "\n")
        command = (sys.executable, "-m", "controlplane", "fleet", "up", "--config", str(config))
        self._add(name, Kind.DAEMON, command, port)

    def _add_envoy(self, name: str, port: int, admin: int, pickers: tuple[str, ...]) -> None:
        plane = DataPlane(
            pickers=pickers,
            endpoints=self.endpoints,
            name=name,
            listen=f"127.0.0.1:{port}",
            admin=f"127.0.0.1:{admin}",
            otlp_endpoint=self.options.otlp_endpoint,
        )
        path = self.folder / f"{name}.yaml"
        path.write_text(bootstrap(plane))
        self._planes[name] = plane
        words = ("--disable-hot-restart", "--concurrency", "1", "--log-level", "error", "-c", str(path))
        self._add(name, Kind.ENVOY, (str(binary()), *words), port)

    # Looking

    def asked(self) -> Process | None:
        """The daemon that Envoy asks now."""
        for daemon in self.of(Kind.DAEMON):
            if daemon.alive and not daemon.frozen and listens(daemon.port) and _serves(daemon.address):
                return daemon
        return None

    def is_asked(self) -> bool:
        """Whether each Envoy has found that the daemon that leads serves it; until then turns may go around it."""
        asked, planes = self.asked(), self._planes.values()
        if asked is None or asked is not self.leader():
            return False
        return all(asked.address in healthy(each, "pickers") for each in planes)

    def leader(self) -> Process | None:
        """The daemon that decides now, as it says itself."""
        for daemon in self.of(Kind.DAEMON):
            if daemon.alive and not daemon.frozen and _is_leading(self._pages[daemon.name]):
                return daemon
        return None

    def ways(self) -> Counter[str]:
        """Requests that went by each of the Envoys' ways, ``asking`` and ``around``, since each began last."""
        found: Counter[str] = Counter()
        for plane in self._planes.values():
            for way in ("asking", "around"):
                page = _page(f"http://{plane.admin}/stats?filter=^http.{way}.downstream_rq_total$")
                found[way] += int(page.rpartition(": ")[2] or 0)
        return found

    def lacks(self) -> str:
        """What it lacks to be whole: a daemon that leads, and engines that each Envoy takes for healthy."""
        if away := [process.name for process in self.processes.values() if not process.alive or process.frozen]:
            return f"{away[0]} does not run"
        if self.leader() is None:
            return "no daemon leads"
        if self.asked() is None:
            return "no daemon serves Envoy"
        for envoy in self.of(Kind.ENVOY):
            known = healthy(self._planes[envoy.name], "engines")
            if unknown := [engine.name for engine in self.engines if engine.address not in known]:
                return f"{envoy.name} does without {unknown[0]}"
        return ""


def is_healthy(port: int) -> bool:
    """Whether an engine at that port of this machine says that it serves."""
    try:
        with open_url(f"http://127.0.0.1:{port}/health", 5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def healthy(plane: DataPlane, cluster: str) -> set[str]:
    """The addresses of a cluster that an Envoy takes for healthy; none while it does not answer."""
    page = _page(f"http://{plane.admin}/clusters?format=json")
    clusters = json.loads(page or "{}").get("cluster_statuses", ())
    hosts = [host for found in clusters if found["name"] == cluster for host in found.get("host_statuses", ())]
    return {_address(host) for host in hosts if not _failed(host["health_status"])}


def _is_leading(port: int) -> bool:
    found = re.search(r"^penstock_leading\S* (\S+)", _page(f"http://127.0.0.1:{port}/metrics"), re.MULTILINE)
    return found is not None and float(found[1]) == 1


def _page(url: str) -> str:
    """Empty while nobody answers."""
    try:
        with open_url(url, 2) as answer:
            return str(answer.read().decode())
    except (OSError, ValueError):
        return ""


def _address(host: dict[str, dict[str, dict[str, object]]]) -> str:
    at = host["address"]["socket_address"]
    return f"{at['address']}:{at['port_value']}"


def _failed(status: dict[str, object]) -> bool:
    return any(value is True for name, value in status.items() if name.startswith("failed_"))


def _serves(address: str) -> bool:
    with grpc.insecure_channel(address, channel_options(address)) as channel:
        try:
            asked = health_pb2.HealthCheckRequest()
            return bool(health_pb2_grpc.HealthStub(channel).Check(asked, timeout=0.5).status == _SERVING)
        except grpc.RpcError:
            return False


@contextmanager
def running_site(
    options: SiteOptions | None = None,
    folder: Path | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> Iterator[Site]:
    """A site that runs; all of it is gone afterwards. Raises ``ControlPlaneError``."""
    with TemporaryDirectory(prefix="penstock-fleet-") as scratch:
        site = Site(folder or Path(scratch), options)
        try:
            site.start(told)
            yield site
        finally:
            site.stop()
