"""The rules of the Endpoint Picker Protocol v1.0.0 (Gateway API Inference Extension), one test for each.

What is asked of the picker by a gateway of Kubernetes. The sentences in quotation marks are the protocol's.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.daemon_process import eventually
from support.pickers import heartbeat

from controlplane.core.commands import Place
from controlplane.core.events import Event, TurnQueued
from controlplane.fleet.ext_proc import PickerServer
from controlplane.fleet.roster import Engine, Roster, Standing
from controlplane.gate import Gate, GateLimits
from fleet.ext_proc_client import BUFFERED, DUPLEX, NONE, destination, destination_metadata, exchange

ENGINES = {f"pod-{index}/engine-8000": f"10.0.0.{index}:8000" for index in range(3)}
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
BODY = json.dumps(
    {"model": "m", "session_id": "s", "messages": [{"role": "user", "content": "x" * 200_000}]}
).encode()


@dataclass
class Bench:
    """A picker that leads, its gate and roster, and a channel to it."""

    roster: Roster
    gate: Gate
    picker: PickerServer
    channel: grpc.aio.Channel
    sent: list[Event] = field(default_factory=list)

    async def health_of(self, service: str) -> int:
        stub = health_pb2_grpc.HealthStub(self.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        return int(answer.status)

    async def health_becomes(self, service: str, status: int) -> None:
        async def look() -> bool:
            return await self.health_of(service) == status

        await eventually(look, what=f"{service} {status}")

    def set_all(self, standing: Standing) -> None:
        for place, address in ENGINES.items():
            self.roster.put(Engine(place=place, address=address, standing=standing))


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    sent: list[Event] = []
    roster = Roster(Engine(place=place, address=address) for place, address in ENGINES.items())
    loop = asyncio.get_running_loop()
    gate = Gate(
        send=lambda event, _: sent.append(event),
        now_ns=lambda: round(loop.time() * 1e9),
        limits=GateLimits(max_held=1),
    )
    picker = PickerServer(gate=gate, roster=roster, name="fleet", patience_s=0)
    port = await picker.start("127.0.0.1:0")
    picker.set_serving(True)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Bench(roster, gate, picker, channel, sent)
    await picker.stop()
    gate.close()


def refusal_of(message: Any) -> tuple[int, dict[str, str]]:
    """Status and headers of an ImmediateResponse."""
    assert message.WhichOneof("response") == "immediate_response", message
    answer = message.immediate_response
    headers = {each.header.key: each.header.raw_value.decode() for each in answer.headers.set_headers}
    return answer.status.code, headers


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", [NONE, BUFFERED, DUPLEX], ids=["none", "buffered", "duplex"])
async def test_the_choice_is_in_header_and_metadata_with_one_value(bench: Bench, mode: int) -> None:
    """ "The EPP MUST not set two different values in the header and the inner response metadata value." """
    async with exchange(bench.channel, mode) as asked:
        answer = await asked.ask(BODY, content_length=str(len(BODY)), x_session_id="s")
    chosen = destination(answer).split(",")
    assert destination_metadata(answer) == destination(answer)
    assert set(chosen) <= set(ENGINES.values())
    assert len(chosen) == len(set(chosen)) >= 1


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
async def test_what_is_no_turn_is_sent_to_an_engine_as_well(bench: Bench, path: str) -> None:
    """ "For each HTTP request, the EPP MUST communicate [...] one or more selected model server endpoints" """
    async with exchange(bench.channel) as asked:
        await asked.headers(path, method="GET", ends=True)
        answer = await asked.read()
    assert destination(answer).split(",")[0] in ENGINES.values()
    assert destination_metadata(answer) == destination(answer)


@pytest.mark.asyncio
async def test_a_body_streams_back_unchanged_after_the_headers(bench: Bench) -> None:
    """ "The EPP MUST support streaming mode for inference requests and responses." """
    async with exchange(bench.channel, DUPLEX) as asked:
        await asked.headers()
        for start in range(0, len(BODY), 50_000):
            await asked.body(BODY[start : start + 50_000], ends=start + 50_000 >= len(BODY))
        assert destination(await asked.read())
        echoed, ended = b"", False
        while not ended:
            piece = (await asked.read()).request_body.response.body_mutation.streamed_response
            assert len(piece.body) < 1 << 16  # Envoy takes no larger one
            echoed, ended = echoed + piece.body, piece.end_of_stream
        assert echoed == BODY
        await asked.answer_headers()
        assert (await asked.read()).WhichOneof("response") == "response_headers"
        for token in (b"data: a\n\n", b"data: b\n\n", b""):  # each comes back before the next is said
            await asked.answer_body(token, ends=not token)
            piece = (await asked.read()).response_body.response.body_mutation.streamed_response
            assert (piece.body, piece.end_of_stream) == (token, not token)


@pytest.mark.asyncio
@pytest.mark.parametrize("form", [list, ",".join], ids=["list", "text"])
async def test_only_endpoints_of_the_subset_are_chosen(bench: Bench, form: Any) -> None:
    """ "the EPP MUST only select endpoints from the specified list" """
    home = "pod-0/engine-8000"
    bench.gate.on_command(Place(command_id=1, program_id="s", replica=home, moves=False))
    for address in ENGINES.values():
        for _ in range(3):
            async with exchange(bench.channel) as asked:
                answer = await asked.ask(BODY, subset=form([address, "192.0.2.1:1"]))
                assert destination(answer) == destination_metadata(answer) == address


@pytest.mark.asyncio
@pytest.mark.parametrize("subset", [[], ["192.0.2.1:1"], ["10.0.0.1:8000"]], ids=["empty", "unknown", "gone"])
async def test_where_none_of_the_subset_is_eligible_the_answer_is_503(bench: Bench, subset: list[str]) -> None:
    """ "If none of the endpoints in the list is eligible or the list is empty, [...] 503 (Service Unavailable)" """
    bench.roster.put(Engine(place="pod-1/engine-8000", address="10.0.0.1:8000", standing=Standing.GONE))
    async with exchange(bench.channel) as asked:
        status, headers = refusal_of(await asked.ask(BODY, subset=subset))
    assert status == 503
    assert int(headers["retry-after"]) > 0
    async with exchange(bench.channel) as asked:
        await asked.headers("/v1/models", method="GET", ends=True, subset=subset)
        assert refusal_of(await asked.read())[0] == 503


@pytest.mark.asyncio
async def test_without_a_ready_endpoint_the_answer_is_503(bench: Bench) -> None:
    """ "503 (Service Unavailable) HTTP status code if there are no ready endpoints" """
    for empty in (False, True):
        bench.set_all(Standing.GONE)
        if empty:
            for place in ENGINES:
                bench.roster.remove(place)
        for mode in (NONE, BUFFERED, DUPLEX):
            async with exchange(bench.channel, mode) as asked:
                assert refusal_of(await asked.ask(BODY))[0] == 503
    bench.set_all(Standing.SERVING)
    async with exchange(bench.channel) as asked:
        assert destination(await asked.ask(BODY))


@pytest.mark.asyncio
async def test_a_request_that_is_shed_gets_429_and_when_to_come_back(bench: Bench) -> None:
    """ "429 (Too Many Requests) HTTP status code if the request should be dropped" """
    bench.gate.on_heartbeat(heartbeat(limit=1, lease_s=600))
    async with exchange(bench.channel) as held, exchange(bench.channel) as shed:
        await held.headers(x_session_id="first")
        await held.body(b'{"messages": []}')

        async def is_held() -> bool:
            return any(isinstance(event, TurnQueued) for event in bench.sent)

        await eventually(is_held, what="a held turn")
        status, headers = refusal_of(await shed.ask(b'{"messages": []}', x_session_id="second"))
    assert status == 429
    assert int(headers["retry-after"]) > 0


@pytest.mark.asyncio
async def test_health_is_liveness_at_all_times_and_readiness_while_it_leads(bench: Bench) -> None:
    """ "Follower Pods: Liveness returns SERVING, Readiness returns NOT_SERVING." """
    for serving, status in ((True, SERVING), (False, NOT_SERVING), (True, SERVING)):
        bench.picker.set_serving(serving)
        for service in ("readiness", SERVICE):
            await bench.health_becomes(service, status)
        assert await bench.health_of("liveness") == SERVING
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await bench.health_of("another")
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.asyncio
async def test_a_follower_answers_nobody(bench: Bench) -> None:
    """ "Do not process inference requests but remain alive for failover." """
    bench.picker.set_serving(False)
    async with exchange(bench.channel) as asked:
        assert await asked.call.code() is grpc.StatusCode.UNAVAILABLE  # before it has read a word


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", [NONE, BUFFERED, DUPLEX], ids=["none", "buffered", "duplex"])
async def test_the_endpoint_that_served_may_be_told(bench: Bench, mode: int) -> None:
    """ "the data plane MUST communicate to the EPP the endpoint that served the request" """
    async with exchange(bench.channel, mode) as asked:
        first, second = destination(await asked.ask(BODY, x_session_id="s")).split(",")
        if mode == DUPLEX:
            while not (await asked.read()).request_body.response.body_mutation.streamed_response.end_of_stream:
                pass
        await asked.answer_headers(served=second)
        assert (await asked.read()).WhichOneof("response") == "response_headers"
    assert first != second
