"""A picker with a gate whose commands the test gives, and a client that asks it as Envoy does."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from controlplane.core.model.commands import Admit, Place
from controlplane.core.model.events import Event
from controlplane.core.model.types import seconds
from controlplane.fleet._generated import ext_proc_pb2 as ext_proc
from controlplane.fleet.ext_proc import PickerServer
from controlplane.fleet.messages import SERVICE
from controlplane.fleet.roster import Engine, Roster
from controlplane.gate import Gate, GateLimits, GateLink, Ticket
from controlplane.gate.usage import Usage
from controlplane.wire.heartbeat import Heartbeat
from support.daemon_process import eventually

Mode = ext_proc.ProcessingMode
Request, Response = ext_proc.ProcessingRequest, ext_proc.ProcessingResponse
CHAT = "/v1/chat/completions"
PATIENCE_S = 60.0


def heartbeat(limit: int = 4, lease_s: float = 3600.0) -> Heartbeat:
    """A daemon's heartbeat, by which a gate asks before it lets anybody in."""
    return Heartbeat(
        node="fleet", boot_id="boot-1", lease_ttl_ns=seconds(lease_s), limit=limit, window=float(limit)
    )


class TurnsDouble:
    """Keeps what is told of turns, as (what, turn's program, place, status, the answer's usage if it has any)."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def began(self, ticket: Ticket, engine: Engine, now_ns: int) -> None:
        self.told.append(("began", ticket.program_id, engine.place))

    def first_byte(self, ticket: Ticket, engine: Engine, status: int, now_ns: int) -> None:
        self.told.append(("first_byte", ticket.program_id, engine.place, status))

    def ended(self, ticket: Ticket, engine: Engine, status: int, now_ns: int, usage: Usage | None = None) -> None:
        self.told.append(("ended", ticket.program_id, engine.place, status, *([usage] if usage else [])))

    def cut(self, ticket: Ticket, engine: Engine, now_ns: int) -> None:
        self.told.append(("cut", ticket.program_id, engine.place))


@dataclass
class Picker:
    """A picker that listens, and the daemon's part of it, which the test plays."""

    gate: Gate
    server: PickerServer
    roster: Roster
    link: GateLink
    turns: TurnsDouble
    sent: list[Event]
    port: int = 0
    _number: int = 0

    def admit(self, program_id: str, place: str = "") -> None:
        """The daemon lets a program in, and says where it runs."""
        if place:
            self.link.receive(Place(program_id=program_id, replica=place), time.monotonic_ns())
        self.gate.on_command(Admit(program_id=program_id))

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.sent if type(event) is kind]


@asynccontextmanager
async def picker(
    *engines: Engine,
    governed: bool = True,
    listen: str = "127.0.0.1:0",
    more: Mapping[str, Any] | None = None,
    **limits: Any,
) -> AsyncIterator[Picker]:
    """A picker for these engines that serves; ``governed``: a daemon was just heard."""
    sent: list[Event] = []
    gate = Gate(
        send=lambda event, urgent: sent.append(event), now_ns=time.monotonic_ns, limits=GateLimits(**limits)
    )
    link = GateLink(gate, send=lambda event, urgent: sent.append(event), publisher=lambda: "fleet/gate/1")
    roster, turns = Roster(engines), TurnsDouble()
    server = PickerServer(gate=gate, roster=roster, turns=turns, name="picker-1", patience_s=0, **(more or {}))
    if governed:
        link.receive(heartbeat(), time.monotonic_ns())
    made = Picker(gate, server, roster, link, turns, sent)
    made.port = await server.start(listen)
    server.set_serving(True)
    try:
        yield made
    finally:
        gate.close()
        await server.stop()


@dataclass
class Asked:
    """One stream to a picker, as Envoy's."""

    call: Any
    modes: Mapping[str, int] = field(default_factory=dict)

    async def send(self, **message: Any) -> None:
        await self.call.write(Request(**message))

    async def headers(
        self, headers: Mapping[str, str], *, end: bool = False, metadata: Any = None, **first: Any
    ) -> None:
        """The first message: a POST of a chat unless ``headers`` say otherwise."""
        pairs = {":method": "POST", ":path": CHAT, **headers}
        message = Request(request_headers=_headers(pairs, end), **first)
        message.protocol_config.request_body_mode = self.modes.get("request", Mode.NONE)
        message.protocol_config.response_body_mode = self.modes.get("response", Mode.NONE)
        if metadata is not None:
            for space, fields in metadata.items():
                message.metadata_context.filter_metadata[space].update(fields)
        await self.call.write(message)

    async def body(self, data: bytes, *, end: bool = True) -> None:
        await self.send(request_body=ext_proc.HttpBody(body=data, end_of_stream=end))

    async def answer_headers(self, status: int, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        await self.send(response_headers=_headers({":status": str(status), **(headers or {})}, False), **more)

    async def reply(self) -> Any:
        """The next reply; None once the picker has ended the stream."""
        async with asyncio.timeout(PATIENCE_S):
            reply = await self.call.read()
        return None if reply is grpc.aio.EOF else reply

    async def finish(self) -> None:
        """Close it, as Envoy does after the last message, and wait for the picker."""
        await self.call.done_writing()
        async with asyncio.timeout(PATIENCE_S):
            while await self.call.read() is not grpc.aio.EOF:
                pass


@asynccontextmanager
async def asking(port: int) -> AsyncIterator[Callable[..., Asked]]:
    """Makes streams to the picker at that port."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        process = channel.stream_stream(
            f"/{SERVICE}/Process",
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )
        yield lambda role="", **modes: Asked(process(metadata=(("x-penstock-role", role),) if role else ()), modes)


def chosen(reply: Any) -> tuple[dict[str, str], str]:
    """The headers that a reply sets, and the same choice in its metadata."""
    kind = reply.WhichOneof("response")
    common = getattr(reply, kind).response
    headers = {each.header.key: each.header.raw_value.decode() for each in common.header_mutation.set_headers}
    metadata = json.loads(json.dumps(_plain(reply.dynamic_metadata)))
    return headers, metadata.get("envoy.lb", {}).get("x-gateway-destination-endpoint", "")


def refused(reply: Any) -> tuple[int, Any, dict[str, str]]:
    """The status, the JSON body and the headers of a reply in the engine's place."""
    immediate = reply.immediate_response
    headers = {each.header.key: each.header.raw_value.decode() for each in immediate.headers.set_headers}
    return immediate.status.code, json.loads(immediate.body), headers


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait until it is so."""
    await eventually(condition, what=what, timeout_s=PATIENCE_S)


def _headers(pairs: Mapping[str, str], end: bool) -> Any:
    headers = ext_proc.HttpHeaders(end_of_stream=end)
    for key, value in pairs.items():
        headers.headers.headers.add(key=key, raw_value=value.encode())
    return headers


def _plain(struct: Any) -> Any:
    return {
        key: _plain(value.struct_value) if value.HasField("struct_value") else value.string_value
        for key, value in struct.fields.items()
    }
