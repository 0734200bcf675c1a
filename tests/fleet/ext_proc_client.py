"""Envoy's side of ``ext_proc`` by hand: a stream over a real gRPC channel, one message at a time."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from controlplane.fleet._generated import ext_proc_pb2 as ext_proc

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_Mode = ext_proc.ProcessingMode
NONE, BUFFERED, DUPLEX = _Mode.NONE, _Mode.BUFFERED, _Mode.FULL_DUPLEX_STREAMED
DESTINATION = "x-gateway-destination-endpoint"


def header_map(headers: Mapping[str, str]) -> Any:
    pairs = [ext_proc.HeaderValue(key=key, raw_value=value.encode()) for key, value in headers.items()]
    return ext_proc.HeaderMap(headers=pairs)


def metadata(namespace: str, key: str, value: object) -> Any:
    found = ext_proc.Metadata()
    found.filter_metadata[namespace].update({key: value})
    return found


class Exchange:
    """One request of a client's, as Envoy tells the picker of it."""

    def __init__(self, call: Any, mode: int) -> None:
        self.call = call
        self.mode = mode

    async def headers(
        self,
        path: str = "/v1/chat/completions",
        *,
        method: str = "POST",
        ends: bool = False,
        subset: Sequence[str] | str | None = None,
        **headers: str,
    ) -> None:
        """``subset``: the endpoints that the gateway allows."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        message = ext_proc.ProcessingRequest(
            request_headers=ext_proc.HttpHeaders(
                headers=header_map({":method": method, ":path": path, ":authority": "llm", **given}),
                end_of_stream=ends,
            ),
            protocol_config=ext_proc.ProtocolConfiguration(
                request_body_mode=self.mode, response_body_mode=self.mode if self.mode == DUPLEX else NONE
            ),
        )
        if subset is not None:
            told = subset if isinstance(subset, str) else list(subset)
            hint = metadata("envoy.lb.subset_hint", f"{DESTINATION}-subset", told)
            message.metadata_context.CopyFrom(hint)
        await self.call.write(message)

    async def body(self, data: bytes, *, ends: bool = True) -> None:
        body = ext_proc.HttpBody(body=data, end_of_stream=ends)
        await self.call.write(ext_proc.ProcessingRequest(request_body=body))

    async def answer_headers(self, served: str = "", status: int = 200) -> None:
        message = ext_proc.ProcessingRequest(
            response_headers=ext_proc.HttpHeaders(headers=header_map({":status": str(status)}))
        )
        if served:
            message.metadata_context.CopyFrom(metadata("envoy.lb", f"{DESTINATION}-served", served))
        await self.call.write(message)

    async def answer_body(self, data: bytes, *, ends: bool) -> None:
        body = ext_proc.HttpBody(body=data, end_of_stream=ends)
        await self.call.write(ext_proc.ProcessingRequest(response_body=body))

    async def read(self) -> Any:
        """The picker's next message."""
        async with asyncio.timeout(60):
            message = await self.call.read()
        assert message is not grpc.aio.EOF, "the picker hung up"
        return message

    async def ask(self, body: bytes = b"{}", **headers: Any) -> Any:
        """A whole request; the message with the choice or the refusal."""
        await self.headers(**headers)
        if self.mode != NONE:
            if self.mode == BUFFERED:  # Envoy sends the body once the headers are answered
                answer = await self.read()
                if answer.HasField("immediate_response") or destination(answer):
                    return answer
            await self.body(body)
        return await self.read()


def destination(message: Any) -> str:
    """What the header for the data plane says; empty: the message is no choice."""
    kind = message.WhichOneof("response")
    if kind not in ("request_headers", "request_body"):
        return ""
    options = getattr(message, kind).response.header_mutation.set_headers
    return next((each.header.raw_value.decode() for each in options if each.header.key == DESTINATION), "")


def destination_metadata(message: Any) -> str:
    """The same in ``envoy.lb``."""
    return str(message.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION].string_value)


@asynccontextmanager
async def exchange(channel: grpc.aio.Channel, mode: int = DUPLEX) -> AsyncIterator[Exchange]:
    """A stream, which is cancelled afterwards, as Envoy does when its client has gone."""
    call = channel.stream_stream(
        METHOD,
        request_serializer=ext_proc.ProcessingRequest.SerializeToString,
        response_deserializer=ext_proc.ProcessingResponse.FromString,
    )()
    try:
        yield Exchange(call, mode)
    finally:
        call.cancel()
