"""A double of an OTLP collector, over HTTP: it keeps what it is sent."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.pages import Answering, serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A span as it was sent; ids are in hexadecimal digits, and that of a span without a parent is empty."""

    service: str
    instance: str  # which of the service's processes
    name: str
    trace_id: str
    span_id: str
    parent_id: str


class Collector:
    """What came so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[tuple[str, bytes]] = []

    def spans(self) -> list[Told]:
        """In the order in which they came."""
        return [
            Told(
                service=service.get("service.name", ""),
                instance=service.get("service.instance.id", ""),
                name=span.name,
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
            )
            for path, body in tuple(self.bodies)
            if path == "/v1/traces"
            for sent in ExportTraceServiceRequest.FromString(body).resource_spans
            for service in [{each.key: each.value.string_value for each in sent.resource.attributes}]
            for scope in sent.scope_spans
            for span in scope.spans
        ]

    def metrics(self) -> set[str]:
        """The names of the metrics."""
        return {
            metric.name
            for path, body in tuple(self.bodies)
            if path == "/v1/metrics"
            for sent in ExportMetricsServiceRequest.FromString(body).resource_metrics
            for scope in sent.scope_metrics
            for metric in scope.metrics
        }


def _body(request: Answering) -> bytes:
    """All of it, as the daemon sends it or in chunks, as Envoy does."""
    if (length := request.headers["content-length"]) is not None:
        return request.rfile.read(int(length))
    chunks = []
    while size := int(request.rfile.readline(), 16):
        chunks.append(request.rfile.read(size))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(chunks)


@contextmanager
def collector() -> Iterator[Collector]:
    """It listens within."""

    class Handler(Answering):
        def do_POST(self) -> None:  # noqa: N802  http.server calls it
            made.bodies.append((self.path, _body(self)))
            self.answer()

    with serving(Handler) as url:
        made = Collector(url)
        yield made
