"""OpenTelemetry for one daemon: metrics that Prometheus may read, and both metrics and traces sent over OTLP."""

from collections.abc import Callable
from importlib.metadata import version

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from controlplane.config import TelemetryConfig
from controlplane.core.controller import Controller
from controlplane.shell.metrics import Metrics
from controlplane.shell.pump import Recorder
from controlplane.shell.status import Status
from controlplane.shell.traces import Traces


class Telemetry:
    """Owns the providers. ``recorders`` are to be told what happens."""

    def __init__(
        self,
        config: TelemetryConfig,
        node: str,
        *,
        status: Callable[[], Status],
        controller: Callable[[], Controller],
    ) -> None:
        resource = Resource.create(
            {"service.name": "penstock", "service.version": version("penstock"), "service.instance.id": node}
        )
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        readers: list[MetricReader] = [PrometheusMetricReader(registry=self._registry, scope_info_enabled=False)]
        if config.otlp_endpoint:
            readers.append(_metrics_over_otlp(config))
        self._meters = MeterProvider(metric_readers=readers, resource=resource)
        self.recorders: list[Recorder] = [Metrics(self._meters.get_meter("penstock"), status, controller)]
        self._tracers: TracerProvider | None = None
        if config.otlp_endpoint and config.trace_ratio:
            self._tracers = _traces_over_otlp(config, resource)
            self._traces = Traces(self._tracers.get_tracer("penstock"), node)
            self.recorders.append(self._traces)

    def prometheus(self) -> bytes:
        """What Prometheus reads, in its text format."""
        return generate_latest(self._registry)

    def close(self) -> None:
        """Send what is left. Takes a few seconds where nobody listens."""
        if self._tracers is not None:
            self._traces.close()
            self._tracers.shutdown()
        self._meters.shutdown()


def _metrics_over_otlp(config: TelemetryConfig) -> MetricReader:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    exporter = OTLPMetricExporter(endpoint=f"{config.otlp_endpoint.rstrip('/')}/v1/metrics", timeout=2)
    return PeriodicExportingMetricReader(exporter, export_interval_millis=1000 * config.interval_s)


def _traces_over_otlp(config: TelemetryConfig, resource: Resource) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    provider = TracerProvider(resource=resource, sampler=ParentBased(TraceIdRatioBased(config.trace_ratio)))
    exporter = OTLPSpanExporter(endpoint=f"{config.otlp_endpoint.rstrip('/')}/v1/traces", timeout=2)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
