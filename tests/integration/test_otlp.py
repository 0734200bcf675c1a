"""Spans of tool calls over OTLP: OpenTelemetry's own SDK, a real daemon, and what is answered to bad requests."""

import asyncio
import gzip
import io
import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.daemon_process import NODE, bus_of, eventually, queued, running
from support.heard import Heard
from support.ports import free_port

from controlplane.config import OtlpConfig
from controlplane.core.ledger import Ledger
from controlplane.core.model.errors import ConfigError
from controlplane.core.model.events import ToolEnded
from controlplane.daemon.otlp.programs import SpanPrograms
from controlplane.daemon.otlp.receiver import SpanReceiver
from controlplane.daemon.otlp.servers import OtlpServers

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
GATE = f"{NODE}/gate/one"
PROTOBUF, JSON = {"content-type": "application/x-protobuf"}, {"content-type": "application/json"}
GZIP = {"content-encoding": "gzip"}


def execute_tool(provider: TracerProvider, conversation: str, seconds: float = 0.05) -> None:
    """As a tool that runs under an instrumented agent."""
    said = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look", "gen_ai.tool.call.id": "call-1"}
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span(
        "execute_tool look", attributes=said | {"gen_ai.conversation.id": conversation}
    ):
        time.sleep(seconds)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_a_span_is_an_event_of_its_program(protocol: str, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with running(tmp_path, config=f'[otlp]\n{protocol} = "{address}"\n') as daemon:
        async with bus_of(daemon) as bus:
            heard = await asyncio.to_thread(Heard, await daemon.url(), NODE)
            await bus.publish(GATE, 1, queued("run-1"))
            await asyncio.to_thread(_export, protocol, address, ["run-1", "run-2"])
            await eventually(lambda: heard.of(ToolEnded), what="tool's end", timeout_s=60)
            (event,) = heard.of(ToolEnded)
            heard.close()
            assert (event.program_id, event.call_id, event.tool, event.ok) == ("run-1", "call-1", "look", True)
            assert event.duration_ns >= 0.05e9
            assert event.told_after_ns > 0
            status = (await bus.status())["status"]
            assert status["pressure"]["tools_active"] == 0
        assert "tool calls left out" in daemon.log
        assert "run-2" in daemon.log


def _export(protocol: str, address: str, conversations: Iterable[str]) -> None:
    """By the SDK's exporter over HTTP, in gzip; over gRPC the SDK's spans by a client of gRPC's."""
    provider, kept = TracerProvider(), InMemorySpanExporter()
    exporter: Any = kept
    if protocol == "http":
        exporter = OTLPSpanExporter(endpoint=f"http://{address}/v1/traces", compression=Compression.Gzip)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for conversation in conversations:
        execute_tool(provider, conversation)
    provider.shutdown()
    if protocol == "grpc":
        with grpc.insecure_channel(address, compression=grpc.Compression.Gzip) as channel:
            body = encode_spans(kept.get_finished_spans()).SerializeToString()
            answer = channel.unary_unary(EXPORT)(body, timeout=60, wait_for_ready=True)
        assert ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans == 1


@asynccontextmanager
async def serving(delivers: bool = True) -> AsyncIterator[tuple[str, str]]:
    """The servers, over a ledger that knows nobody."""
    programs = SpanPrograms(lambda: ledger)
    ledger = Ledger()
    http, port = (f"127.0.0.1:{free_port()}" for _ in range(2))
    receiver = SpanReceiver(programs, lambda events: None)
    servers = OtlpServers(receiver, OtlpConfig(http=http, grpc=port), lambda: delivers)
    await servers.start()
    try:
        yield http, port
    finally:
        await servers.stop()


async def post(http: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
    """The status, and its message."""
    url = f"http://{http}/v1/traces"
    async with (
        aiohttp.ClientSession() as client,
        client.post(url, data=io.BytesIO(body), headers=headers) as answer,
    ):
        content = await answer.read()
        if answer.content_type == "application/json":
            return answer.status, json.loads(content or b"{}").get("message", "")
        return answer.status, "" if answer.status == 200 else Status.FromString(content).message


LARGE = bytes(5 << 20)


@pytest.mark.parametrize(
    ("body", "headers", "status", "says"),
    [
        (b"", PROTOBUF, 200, ""),
        (b"{}", JSON, 200, ""),
        (gzip.compress(b""), PROTOBUF | GZIP, 200, ""),
        (b"x", PROTOBUF, 400, "no ExportTraceServiceRequest"),
        (b"{", JSON, 400, "no ExportTraceServiceRequest"),
        (b"[" * 100_000, JSON, 400, "no ExportTraceServiceRequest"),
        (b"\xff", JSON, 400, "no ExportTraceServiceRequest"),
        (b"bytes", PROTOBUF | GZIP, 400, "incorrect header"),
        (gzip.compress(b"x" * 100)[:20], PROTOBUF | GZIP, 400, "cut"),
        (b"", PROTOBUF | {"content-encoding": "zstd"}, 415, "gzip"),
        (b"", {"content-type": "text/plain"}, 415, "application/x-protobuf"),
        (LARGE, PROTOBUF, 413, "at most"),
        (gzip.compress(LARGE), PROTOBUF | GZIP, 413, "unpacked"),
    ],
)
async def test_bad_requests_are_told_what_is_wrong(
    body: bytes, headers: dict[str, str], status: int, says: str
) -> None:
    async with serving() as (http, _):
        answered, message = await post(http, body, headers)
    assert answered == status
    assert says in message


@pytest.mark.parametrize(
    ("body", "delivers", "code"),
    [
        (b"x", True, grpc.StatusCode.INVALID_ARGUMENT),
        (LARGE, True, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (b"", False, grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_grpc_has_its_own_errors(body: bytes, delivers: bool, code: grpc.StatusCode) -> None:
    async with serving(delivers) as (_, address), grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary(EXPORT)(body)
    assert failed.value.code() is code


async def test_while_the_bus_is_away_clients_keep_their_spans() -> None:
    async with serving(delivers=False) as (http, _):
        assert await post(http, b"", PROTOBUF) == (503, "the daemon's bus is away: send it again")


async def test_json_has_ids_in_hexadecimal_digits() -> None:
    span = {"traceId": "4b" * 16, "spanId": "0a" * 8, "name": "execute_tool look", "startTimeUnixNano": "1"}
    kind = {"key": "gen_ai.operation.name", "value": {"stringValue": "execute_tool"}}
    spans = [span | {"endTimeUnixNano": str(time.time_ns()), "attributes": [kind]}]
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    async with serving() as (http, _):
        url = f"http://{http}/v1/traces"
        async with aiohttp.ClientSession() as client, client.post(url, data=body, headers=JSON) as answer:
            told = (await answer.json())["partialSuccess"]
    assert told["rejectedSpans"] == "1"
    assert "4b" * 16 in told["errorMessage"]


async def test_an_address_that_is_taken_is_an_error() -> None:
    async with serving() as (http, address):
        for config in (OtlpConfig(http=http), OtlpConfig(grpc=address)):
            receiver = SpanReceiver(SpanPrograms(Ledger), lambda events: None)
            with pytest.raises(ConfigError, match="cannot listen"):
                await OtlpServers(receiver, config, lambda: True).start()
