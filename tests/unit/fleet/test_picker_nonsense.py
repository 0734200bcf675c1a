"""Whatever is sent over a stream, the picker ends that stream at most, and no turn of it stays at the gate."""

import asyncio
from typing import Any

import grpc
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pickers import PATIENCE_S, asking, chosen, picker

from controlplane.fleet._generated import ext_proc_pb2 as ext_proc
from controlplane.fleet.roster import Engine

A = Engine(place="node-a/engine-1", address="10.0.0.1:1")
NAMES = (
    ":method",
    ":path",
    "content-length",
    "x-penstock-program-id",
    "x-penstock-parent-id",
    "x-envoy-attempt-count",
)
VALUES = st.one_of(
    st.sampled_from([b"POST", b"/v1/chat/completions", b"2", b"p", b"", b"\xff\xfe", b"x" * 300]),
    st.binary(max_size=9),
)
HEADERS = st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=6)
BODIES = st.sampled_from(
    [b"", b"{", b"{}", b'{"program_id": "p", "messages": 7}', b'{"program_id": [1]}', b"[]", b"\xff"]
)


@st.composite
def messages(draw: st.DrawFn) -> Any:
    message = ext_proc.ProcessingRequest(observability_mode=draw(st.integers(0, 9)) == 0)
    message.protocol_config.request_body_mode = draw(st.integers(0, 5))
    message.protocol_config.response_body_mode = draw(st.integers(0, 5))
    kind = draw(
        st.sampled_from(["request_headers", "response_headers", "request_body", "response_body", "trailers", ""])
    )
    if kind.endswith("_headers"):
        headers = getattr(message, kind)
        headers.end_of_stream = draw(st.booleans())
        for name, value in [
            *draw(HEADERS),
            *draw(st.sampled_from([[], [(":method", b"POST"), (":path", b"/generate")]])),
        ]:
            headers.headers.headers.add(key=name, raw_value=value)
    elif kind.endswith("_body"):
        body = getattr(message, kind)
        body.body, body.end_of_stream = draw(BODIES), draw(st.booleans())
    elif kind:
        getattr(message, draw(st.sampled_from(["request_trailers", "response_trailers"]))).SetInParent()
    return message


STREAMS = st.tuples(st.sampled_from(["", "asking", "watching"]), st.lists(messages(), max_size=6))


@settings(max_examples=40)
@given(st.lists(STREAMS, min_size=1, max_size=4))
async def test_no_message_ends_more_than_its_stream(streams: list[tuple[str, list[Any]]]) -> None:
    async with picker(A, governed=False) as it, asking(it.port) as ask:
        for role, sent in streams:
            asked = ask(role)
            try:
                for message in sent:
                    await asked.call.write(message)
                await asked.finish()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # it was ended before all was said
            code = await asyncio.wait_for(asked.call.code(), PATIENCE_S)
            told = await asked.call.details()
            # On a busy machine gRPC itself calls a stream broken that was ended while it still wrote to it.
            is_broken = code is grpc.StatusCode.INTERNAL and told.lower().startswith("internal")
            assert code is grpc.StatusCode.OK or is_broken, sent
        asked = ask()
        await asked.headers({"x-penstock-program-id": "after"})
        assert chosen(await asked.reply())[0]["x-penstock-program-id"] == "after"
        await asked.finish()
        it.server._picker.awaiting.stop()
        assert it.gate.health()["running_turns"] == it.gate.health()["held_turns"] == 0
