"""A daemon's configuration, with the defaults and the ranges; a comment beside a field explains its key."""

import re
from dataclasses import dataclass, field, replace

from controlplane.core.experiment import SwitchbackRules
from controlplane.core.model.errors import ConfigError, require
from controlplane.core.model.types import MOST_LEASE_S
from controlplane.core.policies.presets import DEFAULT, PRESETS, STOCK, Preset
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.transport.subjects import check_name

ENVIRONMENT = {
    "PENSTOCK_NODE": "node",
    "PENSTOCK_PRESET": "preset",
    "PENSTOCK_NATS_URL": "nats_url",
    "PENSTOCK_STATE_DIR": "state_dir",
    "PENSTOCK_POD": "fleet.kubernetes.pod",
    "PENSTOCK_POD_IP": "fleet.kubernetes.pod_ip",
}

_KUBERNETES_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """The machine that tools run on."""

    cpus: float = 0.0  # CPUs that tools may use; 0: those that the affinity mask and the cgroup leave the daemon
    elsewhere: bool = False  # tools run on another machine, with cpus CPUs: what this one's are doing is not told
    probe_interval_s: float = 1.0  # time between two samples of the tool host

    def __post_init__(self) -> None:
        require("cpus", self.cpus, low=0, high=100_000)
        if self.elsewhere and not self.cpus:
            raise ConfigError("say how many CPUs the tools' machine has: expected cpus > 0", field="elsewhere")
        require("probe_interval_s", self.probe_interval_s, low=0.05, high=3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConfig:
    """The address at which operators reach the daemon over gRPC, and its certificates."""

    listen: str = ""  # HOST:PORT, unix:PATH or off; empty: NODE.control.sock in the state directory
    certificate: str = ""  # PEM file of the daemon's certificate chain; required if other machines can reach HOST
    private_key: str = ""  # PEM file of the certificate's key
    client_ca: str = ""  # PEM file of the authority that signs clients' certificates; empty: clients need none

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.private_key):
            missing = "private_key" if self.certificate else "certificate"
            raise ConfigError("expected a certificate and its private_key, got only one of them", field=missing)
        if self.client_ca and not self.certificate:
            raise ConfigError("expected a certificate and its private_key too", field="client_ca")
        if self.listen in ("", "off") or self.listen.startswith("unix:"):
            return
        if not _is_host_and_port(self.listen):
            raise ConfigError(f"expected HOST:PORT, unix:PATH or off, got {self.listen!r}", field="listen")
        if not self.certificate and self.listen.rpartition(":")[0].strip("[]") not in _LOOPBACK:
            what = "expected a certificate and its private_key for a HOST that others reach, or 127.0.0.1"
            raise ConfigError(what, field="listen")


DEFAULT_HTTP = "127.0.0.1:9467"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """The web page and Prometheus' metrics. Whoever reaches them can read programs' names but change nothing."""

    listen: str = DEFAULT_HTTP  # HOST:PORT of the page and of /metrics, or off; skipped if the default is in use

    def __post_init__(self) -> None:
        if self.listen != "off" and not _is_host_and_port(self.listen):
            raise ConfigError(f"expected HOST:PORT or off, got {self.listen!r}", field="listen")


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    """What the daemon sends to a collector of OpenTelemetry over OTLP."""

    otlp_endpoint: str = ""  # URL of a collector (http://HOST:4318) for metrics and traces; empty: none
    interval_s: float = 10.0  # time between two exports of metrics
    trace_ratio: float = 1.0  # share of programs that are traced

    def __post_init__(self) -> None:
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"expected http://HOST:PORT, got {self.otlp_endpoint!r}", field="otlp_endpoint")
        require("interval_s", self.interval_s, low=0.1, high=3600)
        require("trace_ratio", self.trace_ratio, low=0, high=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpConfig:
    """Where instrumented agents send spans of their tool calls. Whoever reaches it can tell how long tools took."""

    http: str = "off"  # HOST:PORT at which OTLP over HTTP is taken, usually 127.0.0.1:4318; or off
    grpc: str = "off"  # HOST:PORT at which OTLP over gRPC is taken, usually 127.0.0.1:4317; or off

    def __post_init__(self) -> None:
        for name in ("http", "grpc"):
            if (text := getattr(self, name)) != "off" and not _is_host_and_port(text):
                raise ConfigError(f"expected HOST:PORT or off, got {text!r}", field=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesConfig:
    """A fleet inside Kubernetes, which reads and writes EndpointSlices of its own namespace."""

    engines: str = ""  # Service whose pods are the engines, in place of those that commands add; empty: none
    port: str = ""  # name of the Service's port at which an engine is reached; empty: each of its ports is one
    plugin: bool = True  # whether the engines have Penstock's plugin
    leader: str = ""  # EndpointSlice that names the leader's pod to gateways; empty: none
    pod: str = ""  # name of this daemon's own pod
    pod_ip: str = ""  # its address

    def __post_init__(self) -> None:
        for name in ("engines", "leader"):
            if (text := getattr(self, name)) and not _KUBERNETES_NAME.fullmatch(text):
                raise ConfigError(f"expected a name as Kubernetes has them, got {text!r}", field=name)
        if self.leader and not (self.pod and self.pod_ip):
            raise ConfigError(
                "a leader that is to be named needs PENSTOCK_POD and PENSTOCK_POD_IP, as the Helm chart sets them",
                field="leader",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """Many engines behind one Envoy, for `penstock fleet up`; a node's daemon reads none of it."""

    listen: str = "127.0.0.1:9468"  # HOST:PORT or unix:PATH at which Envoy asks where a turn goes (ext_proc)
    engines: tuple[str, ...] = ()  # that the fleet begins with
    domains: tuple[str, ...] = ()  # JetStream domains of nodes that keep their own streams
    endpoints: str = ""  # file in which Envoy reads the engines' addresses (EDS); empty: none is written
    tenant_header: str = ""  # that Envoy sets and no client can: whose a request is; empty: its API key tells
    rank: int = 0  # of this daemon: how many others Envoy asks before it
    lease_ttl_s: float = 12.0  # a leader not heard for so long is replaced; longer than NATS' elections
    kubernetes: KubernetesConfig = field(default_factory=KubernetesConfig)

    def __post_init__(self) -> None:
        require("rank", self.rank, low=0, high=1000)
        require("lease_ttl_s", self.lease_ttl_s, low=2, high=3600)
        if not self.listen.startswith("unix:") and not _is_host_and_port(self.listen):
            raise ConfigError(f"expected HOST:PORT or unix:PATH, got {self.listen!r}", field="listen")
        for domain in self.domains:
            node, equals, name = domain.partition("=")
            if not (node and equals and name):
                raise ConfigError(f"expected NODE=DOMAIN, got {domain!r}", field="domains")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowConfig:
    """A second controller that decides beside the one in force and sends nothing (docs/adr/0054)."""

    preset: str = ""  # its preset; empty: there is no shadow
    settings: tuple[str, ...] = ()
    cpu_ratio: float = 0.2  # most of the daemon's CPU time that it may take
    estimate_s: float = 60.0  # time between two estimates of what it would change; 0: none is made
    stretch_s: float = 600.0  # most of the latest time that an estimate replays

    def __post_init__(self) -> None:
        require("cpu_ratio", self.cpu_ratio, low=0, high=0.5, ends="(]")
        require("estimate_s", self.estimate_s, low=0, high=86_400)
        require("stretch_s", self.stretch_s, low=1, high=86_400)
        if self.settings and not self.preset:
            raise ConfigError("expected a preset beside the settings, which change it", field="preset")


def _is_host_and_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and int(port) <= 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A daemon's whole configuration. Raises ``ConfigError`` for a value out of its range."""

    node: str = "local"  # name of the serving node: part of every subject, the stream's name and file names
    preset: str = DEFAULT  # the named set of policies to start from
    nats_url: str = ""  # the NATS server to use; empty: the daemon starts its own
    state_dir: str = ""
    tool_socket: str = ""  # socket for agents without bus credentials; empty: NODE.sock in the state directory
    time_scale: float = 1.0  # for demos: engine seconds that pass in one second of the wall clock
    heartbeat_s: float = 0.25  # time between two heartbeats to the gates
    lease_s: float = 5.0  # silence after which a gate considers the daemon lost; at least two heartbeats
    snapshot_s: float = 1.0  # time between two snapshots; what happened since is in the stream
    decision_log_mb: float = 64.0  # most of the log behind `penstock explain`, with rotated files; 0: no log
    host: HostConfig = field(default_factory=HostConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    otlp: OtlpConfig = field(default_factory=OtlpConfig)
    fleet: FleetConfig = field(default_factory=FleetConfig)
    shadow: ShadowConfig = field(default_factory=ShadowConfig)
    experiment: SwitchbackRules = field(default_factory=SwitchbackRules)
    control: ControlRules = field(default_factory=ControlRules)
    policies: Preset = field(default_factory=lambda: PRESETS[DEFAULT])

    def __post_init__(self) -> None:
        check_name(self.node, field="node")
        require("time_scale", self.time_scale, low=0, high=100, ends="(]")
        require("heartbeat_s", self.heartbeat_s, low=0.01, high=60)
        require("lease_s", self.lease_s, low=2 * self.heartbeat_s, high=MOST_LEASE_S)
        require("decision_log_mb", self.decision_log_mb, low=0, high=1_000_000)
        require("snapshot_s", self.snapshot_s, low=0.05, high=3600)
        if self.experiment.on and self.shadow.preset:
            what = "expected no shadow beside an experiment: it is compared with one preset, not with two in turn"
            raise ConfigError(what, field="experiment")

    @property
    def is_stock(self) -> bool:
        """Whether it decides as a stock engine does."""
        return self.policies == PRESETS[STOCK]

    @property
    def as_stock(self) -> "Config":
        """The same under the stock policies."""
        return replace(self, preset=STOCK, policies=PRESETS[STOCK])
