"""Request bodies while they arrive: counted, bounded, and never parsed where that would hold everybody up."""

import asyncio
import gzip
import json
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.model.types import seconds
from controlplane.gate.asgi import ClientGone
from controlplane.gate.bodies import Bodies, BodyRefused, Structure, json_object
from controlplane.gate.limits import GateLimits

MIB = 1 << 20
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\,[{é\n', max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(alphabet='k"\\,[', max_size=4), inner),
    max_leaves=40,
)


class Client:
    """Sends a body in pieces, when it is asked to; says nothing more after the last."""

    def __init__(self, *pieces: bytes, ends: bool = True) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for index, piece in enumerate(pieces):
            more = index < len(pieces) - 1 or not ends
            self.messages.put_nowait({"type": "http.request", "body": piece, "more_body": more})

    def send(self, piece: bytes, *, more: bool) -> None:
        self.messages.put_nowait({"type": "http.request", "body": piece, "more_body": more})

    @property
    def receive(self) -> Callable[[], Awaitable[dict[str, Any]]]:
        return self.messages.get


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def counted(value: object) -> int:
    """Separators outside of strings, and containers twenty times, of a value as ``json`` writes it."""
    if isinstance(value, dict):
        return 20 + max(0, len(value) - 1) + sum(counted(each) for each in value.values())
    if isinstance(value, list):
        return 20 + max(0, len(value) - 1) + sum(counted(each) for each in value)
    return 0


@given(VALUES, st.lists(st.integers(1, 9), min_size=1), st.booleans())
def test_what_stands_outside_of_strings_is_counted_however_it_comes(
    value: object, sizes: list[int], plain: bool
) -> None:
    data, structure = json.dumps(value, ensure_ascii=plain).encode(), Structure()
    start = turn = 0
    while start < len(data):
        size = sizes[turn % len(sizes)]
        structure.feed(data[start : start + size])
        start, turn = start + size, turn + 1
    assert structure.values == counted(value)


async def refused(limits: GateLimits, *pieces: bytes) -> BodyRefused:
    with pytest.raises(BodyRefused) as told:
        await Bodies(limits).read(Client(*pieces).receive)
    return told.value


async def test_a_body_of_millions_of_values_is_refused_before_it_is_parsed() -> None:
    """The one that held a gate up for seconds: 60 MB of empty lists."""
    body = b"[" + b"[]," * (20 * MIB) + b"[]]"
    started = time.thread_time()
    told = await refused(GateLimits(), *(body[at : at + 65_536] for at in range(0, len(body), 65_536)))
    assert (told.status, told.code) == (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_complex")
    assert time.thread_time() - started < 2.0, "no more of it is looked at than is needed to tell"


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"role": "user", "content": "' + b'[{,\\\\\\"' * (4 * MIB) + b'"}]}',  # code, in a string
        b'{"input_ids": [' + b"12345," * 1_500_000 + b"1]}",  # a prompt of a million and a half token ids
        b"[" + b"[]," * 50_000 + b"[]]",  # much in it, and too small to matter
    ],
)
async def test_what_parses_quickly_passes(body: bytes) -> None:
    read = await Bodies(GateLimits()).read(
        Client(*(body[at : at + 65_536] for at in range(0, len(body), 65_536))).receive
    )
    assert read == body


_TEXT = '"quoted" \\ \u00e9\U0001f600 plain, [{: '  # what is cut at any of its bytes


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{"role": "user", "content": _TEXT * 40}] * 2_000},
        {"messages": [{"content": _TEXT * each} for each in (1, 3_000, 30_000)]},
        {"prompt": list(range(200_000)), "temperature": 0.7, "seed": -1, "stop": None, "stream": True},
        {"image": "A" * (3 * MIB), "bias": float("inf"), "seed": 1 << 70},  # what only Python takes for JSON
        {"messages": [{"role": "user", "content": half} for half in ["A" * MIB, "\ud83d"]]},
        ["A" * (2 * MIB)],
    ],
)
@pytest.mark.parametrize("escaped", [True, False])
async def test_a_large_body_is_parsed_in_parts_as_it_is_as_a_whole(value: Any, escaped: bool) -> None:
    body = json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    assert await json_object(body) == (value if isinstance(value, dict) else None)
    assert await json_object(body[:-1]) is None
    assert bool(await json_object(body + b"]")) is isinstance(value, dict), "Go reads one value"


async def test_others_run_while_a_large_body_is_parsed() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": _TEXT * 40}] * 10_000}).encode()
    parsing, turns = asyncio.ensure_future(json_object(body)), 0
    while not parsing.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > len(body) / (1 << 18)


@pytest.mark.parametrize(
    ("more", "is_turn"),
    [
        ('"x": NaN}', True),
        ('"x": "\t"} and more', True),
        ('"x": "\udcff"}', True),  # a byte that is no UTF-8, in a field that a server may leave unread
        ('"x": "\\ud800"}', True),
        ('"x": 1', False),
        ('"x": [[[' + "[" * 90_000 + "]" * 90_003 + "}", None),
        ('"x": ' + "[" * 90_000 + '"' + "A" * MIB + '"' + "]" * 90_000 + "}", None),
        ('"x": 1' + "0" * 5_000 + "}", None),
    ],
)
async def test_no_body_that_some_server_takes_passes_by_the_gate(more: str, is_turn: bool | None) -> None:
    """What no server takes is no object, and what cannot be parsed here is refused."""
    body = ('{"messages": [1], ' + more).encode(errors="surrogateescape")
    if is_turn is None:
        with pytest.raises(BodyRefused, match="nested too deeply, or holds a number of thousands"):
            await json_object(body)
    else:
        assert ((await json_object(body)) or {}).get("messages") == ([1] if is_turn else None)


async def test_a_body_over_its_bound_is_refused() -> None:
    told = await refused(GateLimits(max_body_bytes=10), b"12345", b"678901")
    assert (told.status, told.code) == (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large")
    assert str(told) == "the request body has more than 10 bytes"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b" " * (32 * MIB), "body_too_large"),
        (b"[" + b"[]," * 2_000_000 + b"[]]", "body_too_complex"),
        (b"", ""),
    ],
)
async def test_a_compressed_body_has_the_bounds_of_a_plain_one(body: bytes, code: str) -> None:
    """A hundred kilobytes that hold many megabytes do not keep the loop from others meanwhile."""
    bodies, beats = Bodies(GateLimits(max_body_bytes=16 * MIB)), 0
    reading = asyncio.ensure_future(bodies.read(Client(gzip.compress(body)).receive, "gzip"))
    while not reading.done():
        await asyncio.sleep(0)
        beats += 1
    if not code:
        assert await reading == body
        return
    with pytest.raises(BodyRefused) as told:
        await reading
    assert told.value.code == code
    assert beats > 1
    assert bodies.bytes_arriving == 0


async def test_empty_members_without_end_are_refused() -> None:
    members = [gzip.compress(b"")] * 300
    for pieces, most, why in (
        (members[:100], 1000, "more than 1,000 bytes"),
        ([b"".join(members)], 10_000, "members"),
    ):
        with pytest.raises(BodyRefused, match=why):
            await Bodies(GateLimits(max_body_bytes=most)).read(Client(*pieces).receive, "gzip")


async def test_where_too_much_arrives_at_once_the_largest_body_goes_and_its_bytes_are_free() -> None:
    bodies = Bodies(GateLimits(max_arriving_bytes=100))
    large, small = Client(b"x" * 60, ends=False), Client(b"y" * 30, ends=False)
    cut, kept = (asyncio.ensure_future(bodies.read(client.receive)) for client in (large, small))
    await settle()
    assert bodies.bytes_arriving == 90
    small.send(b"y" * 20, more=True)
    await settle()
    assert bodies.bytes_arriving == 50, "the large one's are gone, though it has not been told"
    large.send(b"x", more=True)
    with pytest.raises(BodyRefused) as told:
        await cut
    assert (told.value.status, told.value.code) == (HTTPStatus.SERVICE_UNAVAILABLE, "too_many_bodies")
    small.send(b"y", more=False)
    assert await kept == b"y" * 51
    assert bodies.bytes_arriving == 0


async def test_a_body_that_never_ends_is_refused_in_time() -> None:
    bodies = Bodies(GateLimits(body_ns=seconds(5), time_scale=100.0))
    with pytest.raises(BodyRefused) as told:
        await bodies.read(Client(b"{", ends=False).receive)
    assert (told.value.status, told.value.code) == (HTTPStatus.REQUEST_TIMEOUT, "body_too_slow")
    assert bodies.bytes_arriving == 0


async def test_a_client_that_leaves_frees_what_it_sent() -> None:
    bodies, client = Bodies(GateLimits()), Client(b"abc", ends=False)
    client.messages.put_nowait({"type": "http.disconnect"})
    with pytest.raises(ClientGone):
        await bodies.read(client.receive)
    assert bodies.bytes_arriving == 0
