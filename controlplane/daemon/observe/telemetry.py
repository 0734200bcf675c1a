"""OpenTelemetry for one daemon: metrics that Prometheus may read, and both metrics and traces sent over OTLP."""

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from controlplane import __version__
from controlplane.config import TelemetryConfig
from controlplane.core.regret import Sums
from controlplane.daemon.observe.engine_metrics import WITH_ALL_ENGINES, EngineTokens, exposed, instruments
from controlplane.daemon.observe.instruments import REGRET, make
from controlplane.daemon.observe.journal import Journal
from controlplane.daemon.observe.metrics import Look, Metrics
from controlplane.daemon.observe.traces import Traces
from controlplane.daemon.status.engines import EngineRow
from controlplane.daemon.status.status import Status
from controlplane.transport.loopback import is_here

if TYPE_CHECKING:
    import requests

_PAUSE_S = 1e-4  # between two pieces of a scrape's text: else the daemon's thread gets the interpreter after 5 ms


class Telemetry:
    """Owns the providers. Metrics and traces are views of the journal."""

    def __init__(
        self,
        config: TelemetryConfig,
        node: str,
        *,
        status: Callable[[], Status],
        engines: Callable[[], Iterable[EngineRow]],
        journal: Journal,
        sums: Callable[[], Sums] = Sums,
        spans: Mapping[str, int] | None = None,
    ) -> None:
        resource = Resource.create(
            {"service.name": "penstock", "service.version": __version__, "service.instance.id": node}
        )
        self._look = Look(status, engines)
        self._tokens = EngineTokens()
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        readers: list[MetricReader] = [PrometheusMetricReader(registry=self._registry, scope_info_enabled=False)]
        if config.otlp_endpoint:
            readers.append(_metrics_over_otlp(config))
        self._meters = [MeterProvider(metric_readers=readers, resource=resource)]
        meter = self._meters[0].get_meter("penstock")
        journal.views.append(Metrics(meter, self._look, journal.controller, self._tokens, spans))
        make(meter, REGRET, lambda _: sums())
        if config.otlp_endpoint:  # Prometheus has the engines' without the SDK
            sent = MeterProvider([_metrics_over_otlp(config)], resource=resource, views=[WITH_ALL_ENGINES])
            self._meters.append(sent)
            instruments(sent.get_meter("penstock"), self._look.engines, self._tokens)
        self._tracers: TracerProvider | None = None
        if config.otlp_endpoint and config.trace_ratio:
            self._tracers = _traces_over_otlp(config, resource)
            self._traces = Traces(self._tracers.get_tracer("penstock"), node, journal)
            journal.views.append(self._traces)

    async def look(self) -> None:
        """Note how things stand, for ``prometheus`` to tell: in the daemon's own thread."""
        await self._look.take()

    def prometheus(self) -> bytes:
        """What Prometheus reads, in its text format. In any thread: with very many engines it takes some ms."""
        with _uncollected():
            pieces = [generate_latest(self._registry)]
            for piece in exposed(self._look.engines("prometheus"), self._tokens):
                pieces.append(piece)
                time.sleep(_PAUSE_S)
        return b"".join(pieces)

    def close(self) -> None:
        """Send what is left. Takes a few seconds where nobody listens."""
        if self._tracers is not None:
            self._traces.close()
            self._tracers.shutdown()
        for meters in self._meters:
            meters.shutdown()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection.

    With a thousand engines so much is made, and freed again by itself, that each time a collection would be due,
    which looks through all programs and holds the daemon up for a tenth of a second.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _otlp(config: TelemetryConfig, signal: str) -> str:
    return f"{config.otlp_endpoint.rstrip('/')}/v1/{signal}"


def _session(config: TelemetryConfig) -> "requests.Session":
    """A session that takes no proxy to a collector on this machine."""
    import requests

    session = requests.Session()
    session.trust_env = not is_here(config.otlp_endpoint)
    return session


def _metrics_over_otlp(config: TelemetryConfig) -> MetricReader:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    exporter = OTLPMetricExporter(endpoint=_otlp(config, "metrics"), timeout=2, session=_session(config))
    return PeriodicExportingMetricReader(exporter, export_interval_millis=1000 * config.interval_s)


def _traces_over_otlp(config: TelemetryConfig, resource: Resource) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    provider = TracerProvider(resource=resource, sampler=ParentBased(TraceIdRatioBased(config.trace_ratio)))
    exporter = OTLPSpanExporter(endpoint=_otlp(config, "traces"), timeout=2, session=_session(config))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
