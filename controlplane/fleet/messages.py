"""The messages of Envoy's ``ext_proc``: what they say of a request, and how they are answered."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from controlplane.fleet._generated import ext_proc_pb2 as ext_proc
from controlplane.fleet.watched_reply import OF_SHAPE
from controlplane.gate.requests import TURN_HEADER, count_of, turn_path

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
DESTINATION = "x-gateway-destination-endpoint"
_SUBSET_HINT = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")
_LB = "envoy.lb"
_SERVED_BY = "upstream.address"
_MOST_CHUNK = 62_000  # bytes of a body sent back at once: Envoy takes less than 64 KiB
_Mode = ext_proc.ProcessingMode
NONE, BUFFERED, DUPLEX = _Mode.NONE, _Mode.BUFFERED, _Mode.FULL_DUPLEX_STREAMED
ProcessingRequest = ext_proc.ProcessingRequest
ProcessingResponse = ext_proc.ProcessingResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the first message says: the request's headers, and how its body and its answer's will come."""

    headers: tuple[tuple[bytes, bytes], ...]
    method: str
    path: str  # without its query
    query: str
    has_body: bool
    body_mode: int
    answer_mode: int
    subset: frozenset[str] | None  # addresses, the only ones to choose from

    @property
    def turn_path(self) -> str:
        """The path by which a turn is known."""
        return turn_path(unquote(self.path))

    def header(self, name: bytes) -> str:
        """The first header of that name; empty if there is none."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), "")


def request_of(message: Any) -> Request:
    """Read a message with ``request_headers``."""
    pairs = tuple((_bytes(each.key), _value(each)) for each in message.request_headers.headers.headers)
    texts = {key: value.decode("latin-1") for key, value in pairs if key in (b":method", b":path")}
    path, _, query = texts.get(b":path", "").partition("?")
    config = message.protocol_config
    return Request(
        headers=pairs,
        method=texts.get(b":method", ""),
        path=path,
        query=query,
        has_body=not message.request_headers.end_of_stream,
        body_mode=config.request_body_mode,
        answer_mode=config.response_body_mode,
        subset=_subset(message),
    )


def answer_of(message: Any) -> tuple[int, str, dict[str, str]]:
    """Of a message with ``response_headers``: the status, the engine's address if told, and headers.

    Those of ours, and ``OF_SHAPE``.
    """
    status, told = 0, {}
    for each in message.response_headers.headers.headers:
        if each.key == ":status":
            status = count_of(_value(each).decode("latin-1"))
        elif each.key.startswith("x-penstock-") or each.key in OF_SHAPE:
            told[each.key] = _value(each).decode("latin-1")
    return status, _served_by(message), told


def choice(addresses: str, own: Mapping[str, str]) -> Any:
    """Go on to the first of ``addresses`` that can be reached, with these headers for the engine."""
    common = ext_proc.CommonResponse(clear_route_cache=True)
    mutation = common.header_mutation
    _add_header(mutation, DESTINATION, addresses)
    for name, value in own.items():
        _add_header(mutation, name, value)
    return common


def on_headers(common: Any, addresses: str, *, then: Any | None) -> Any:
    """The choice as the answer to a request's headers; ``then``: what is to come here yet, if not as configured."""
    reply = ProcessingResponse(request_headers=ext_proc.HeadersResponse(response=common))
    reply.dynamic_metadata.CopyFrom(_metadata(addresses))
    if then is not None:
        reply.mode_override.CopyFrom(then)
    return reply


def on_body(common: Any, addresses: str, body: bytes | None = None) -> Any:
    """The choice as the answer to a request's whole body, in whose place ``body`` goes, plain, if there is one."""
    if body is not None:
        common.body_mutation.body = body
        common.header_mutation.remove_headers.append("content-encoding")
        _add_header(common.header_mutation, "content-length", str(len(body)))
    reply = ProcessingResponse(request_body=ext_proc.BodyResponse(response=common))
    reply.dynamic_metadata.CopyFrom(_metadata(addresses))
    return reply


def bodies_back(side: str, data: bytes, *, last: bool) -> Iterator[Any]:
    """A body, or a piece of it, sent back as it came; ``side`` is ``request_body`` or ``response_body``."""
    for start in range(0, max(1, len(data)), _MOST_CHUNK):
        piece = data[start : start + _MOST_CHUNK]
        is_last = last and start + _MOST_CHUNK >= len(data)
        streamed = ext_proc.StreamedBodyResponse(body=piece, end_of_stream=is_last)
        mutation = ext_proc.BodyMutation(streamed_response=streamed)
        body = ext_proc.BodyResponse(response=ext_proc.CommonResponse(body_mutation=mutation))
        reply = ProcessingResponse()
        getattr(reply, side).CopyFrom(body)
        yield reply


def go_on(kind: str) -> Any | None:
    """The answer to a message of that kind that changes nothing; None for a kind that wants none."""
    return _GO_ON.get(kind)


def with_answer_headers(own: Mapping[str, str]) -> Any:
    """Add these headers to the answer."""
    common = ext_proc.CommonResponse()
    for name, value in own.items():
        _add_header(common.header_mutation, name, value)
    return ProcessingResponse(response_headers=ext_proc.HeadersResponse(response=common))


def more_time(wait_ms: int) -> Any:
    """The request is held: Envoy is to wait that long for the answer."""
    reply = ProcessingResponse()
    reply.override_message_timeout.FromMilliseconds(wait_ms)
    return reply


def answer_at_once(status: int, content: object, headers: Mapping[str, str], details: str) -> Any:
    """Answer the client in the engine's place, with ``content`` as JSON."""
    reply = ext_proc.ImmediateResponse(
        status=ext_proc.HttpStatus(code=status), body=json.dumps(content).encode(), details=details
    )
    for name, value in (("content-type", "application/json"), *headers.items()):
        _add_header(reply.headers, name, value)
    return ProcessingResponse(immediate_response=reply)


def turn_named(message: Any) -> str:
    """The turn that a message with ``request_headers`` names, of an observing filter behind the picker's."""
    for each in message.request_headers.headers.headers:
        if each.key == TURN_HEADER:
            return _value(each).decode("latin-1")
    return ""


def _add_header(mutation: Any, name: str, value: str) -> None:
    option = mutation.set_headers.add()
    option.header.key = name
    option.header.raw_value = _bytes(value)
    option.append_action = ext_proc.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _value(header: Any) -> bytes:
    value: bytes = header.raw_value
    return value or _bytes(header.value)


@lru_cache(maxsize=4096)
def _metadata(addresses: str) -> Any:
    reply = ProcessingResponse()
    reply.dynamic_metadata.update({_LB: {DESTINATION: addresses}})
    return reply.dynamic_metadata


def _subset(message: Any) -> frozenset[str] | None:
    space, key = _SUBSET_HINT
    metadata = message.metadata_context.filter_metadata
    if space not in metadata or key not in metadata[space].fields:
        return None
    value = metadata[space].fields[key]
    if value.WhichOneof("kind") == "list_value":
        return _addresses(each.string_value for each in value.list_value.values)
    return _addresses(value.string_value.split(","))


def _addresses(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(text.strip() for text in texts if text.strip())


def _served_by(message: Any) -> str:
    for attributes in message.attributes.values():
        if _SERVED_BY in attributes.fields:
            return str(attributes.fields[_SERVED_BY].string_value)
    return ""


_GO_ON = {
    "request_headers": ProcessingResponse(request_headers=ext_proc.HeadersResponse()),
    "request_body": ProcessingResponse(request_body=ext_proc.BodyResponse()),
    "request_trailers": ProcessingResponse(request_trailers=ext_proc.TrailersResponse()),
    "response_headers": ProcessingResponse(response_headers=ext_proc.HeadersResponse()),
    "response_body": ProcessingResponse(response_body=ext_proc.BodyResponse()),
    "response_trailers": ProcessingResponse(response_trailers=ext_proc.TrailersResponse()),
}
# All modes are named: an override sets each of them.
ONLY_THE_ANSWER = _Mode(
    request_body_mode=NONE,
    response_header_mode=_Mode.SEND,
    response_body_mode=NONE,
    request_trailer_mode=_Mode.SKIP,
    response_trailer_mode=_Mode.SEND,
)
NOTHING = _Mode(
    request_body_mode=NONE,
    response_header_mode=_Mode.SKIP,
    response_body_mode=NONE,
    request_trailer_mode=_Mode.SKIP,
    response_trailer_mode=_Mode.SKIP,
)
