"""Every request of an MCP session is answered once, whatever its id, its server and the order of things."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle as Bundled
from hypothesis.stateful import RuleBasedStateMachine, consumes, invariant, precondition, rule
from support.reports import Reports

from controlplane.core.model.events import ProgramArrived, ProgramEnded, ToolEnded, ToolStarted
from engine_hooks.tools import mcp_messages
from engine_hooks.tools.mcp_messages import EVENTS, LINES, Splitter, event_data, event_with
from engine_hooks.tools.mcp_session import Owner, Request, Session

TIMEOUT_S = 60.0
IDS: list[Any] = [1, "1", 2, "a", 1 << 30]
METHODS = ("tools/call", "tools/list")


def text(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def session(reports: Reports, program: str = "", timeout_s: float = 0) -> Session:
    return Session(reports, Owner(reports, program), timeout_s)


class Connection(RuleBasedStateMachine):
    """A session between clients that choose ids badly and a server that answers late, in batches or never."""

    at_server = Bundled("at_server")

    def __init__(self) -> None:
        super().__init__()
        self.reports = Reports()
        self.session = session(self.reports, timeout_s=TIMEOUT_S)
        self.now_s = 0.0
        self.requests: dict[int, Request] = {}  # by number, which the parameters and the answer repeat
        self.answers: Counter[int] = Counter()
        self.cancelled: set[int] = set()
        self.in_use: set[str] = set()  # ids at the server that it may answer yet

    @rule(
        target=at_server,
        ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=3),
        method=st.sampled_from(METHODS),
    )
    def request(self, ids: list[Any], method: str) -> Any:
        numbers = [len(self.requests) + i for i in range(len(ids))]
        sent = [
            {"id": one, "method": method, "params": {"name": "look", "n": n}}
            for one, n in zip(ids, numbers, strict=True)
        ]
        passed = self.session.from_client(json.dumps(sent[0] if len(sent) == 1 else sent).encode(), self.now_s)
        self.requests.update(zip(numbers, passed.requests, strict=True))
        arrived = json.loads(passed.data)
        arrived = arrived if isinstance(arrived, list) else [arrived]
        assert [one["params"] for one in arrived] == [one["params"] for one in sent]
        for one in arrived:
            assert json.dumps(one["id"]) not in self.in_use, "two requests with one id at the server"
            self.in_use.add(json.dumps(one["id"]))
        return arrived

    @rule(sent=consumes(at_server), as_batch=st.booleans(), twice=st.booleans(), failed=st.booleans())
    def answer(self, sent: Any, as_batch: bool, twice: bool, failed: bool) -> None:
        found = [{"id": one["id"], "result": {"n": one["params"]["n"], "isError": failed}} for one in sent]
        for message in [found] if as_batch else found:
            passed = self.session.from_server(json.dumps(message).encode())
            got = json.loads(passed or b"[]")
            for one in got if isinstance(got, list) else [got]:
                assert one["id"] == self.requests[one["result"]["n"]].id, "the client's own id"
                self.answers[one["result"]["n"]] += 1
        self.in_use -= {json.dumps(one["id"]) for one in sent}
        if twice:
            stray = text(id="of nobody", result={})
            assert self.session.from_server(stray) is stray

    @rule(seconds=st.integers(1, TIMEOUT_S))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds
        for error, stop in self.session.give_up(self.session.open, self.now_s):
            number = self.number_of(json.loads(stop)["params"]["requestId"])
            assert (json.loads(error)["id"], json.loads(error)["error"]["code"]) == (
                self.requests[number].id,
                -32001,
            )
            self.answers[number] += 1

    @precondition(lambda self: self.session.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.session.open))
        same = [one for one in self.session.open if json.dumps(one.id) == json.dumps(request.id)]
        notice = text(method="notifications/cancelled", params={"requestId": request.id, "reason": "enough"})
        passed = self.session.from_client(notice, self.now_s).data
        if len(same) > 1:
            assert passed == b"", "nothing says which is meant"
        else:
            assert json.loads(passed)["params"] == {"requestId": request.server_id, "reason": "enough"}
            self.cancelled |= {n for n, one in self.requests.items() if one is request}

    @precondition(lambda self: self.session.open)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.fail(data.draw(st.sampled_from(self.session.open)))

    def fail(self, request: Request) -> None:
        assert json.loads(self.session.fail(request, "gone"))["id"] == request.id
        assert self.session.fail(request, "gone") == b""
        self.answers[next(n for n, one in self.requests.items() if one is request)] += 1

    def number_of(self, server_id: Any) -> int:
        return max(n for n, one in self.requests.items() if json.dumps(one.server_id) == json.dumps(server_id))

    @invariant()
    def once(self) -> None:
        assert all(count == 1 for count in self.answers.values())
        begun, ended = (
            Counter(e.call_id for e in self.reports.events if isinstance(e, kind))
            for kind in (ToolStarted, ToolEnded)
        )
        assert set(begun.values()) | set(ended.values()) <= {1}
        assert len(begun) - len(ended) == len([one for one in self.session.open if one.tool])

    def teardown(self) -> None:
        for request in self.session.open:
            self.fail(request)
        assert set(self.requests) - set(self.answers) <= self.cancelled
        self.session.close()
        self.once()


TestConnection = Connection.TestCase


@given(
    st.lists(st.binary(max_size=6) | st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n"]), max_size=12),
    st.sampled_from([LINES, EVENTS, None]),
    st.sampled_from([8, 1 << 20]),
)
def test_what_is_cut_is_what_came(chunks: list[bytes], end: Any, most: int) -> None:
    splitter = Splitter(end, most)
    pieces = [piece for chunk in chunks for piece in splitter.feed(chunk)]
    assert b"".join(piece.data for piece in pieces) + splitter.rest() == b"".join(chunks)
    assert all(
        piece.first != splitting
        for piece, splitting in zip(pieces, [False, *(not p.last for p in pieces)], strict=False)
    )
    if end is LINES and most > 8:
        assert all(piece.whole and piece.data.count(b"\n") == 1 for piece in pieces)


def test_each_byte_is_looked_at_once() -> None:
    looked = []

    class Counting:
        def search(self, held: bytearray, start: int) -> Any:
            looked.append(len(held) - start)
            return LINES.search(held, start)

    splitter = Splitter(Counting(), 1 << 30)  # type: ignore[arg-type]
    for _ in range(256):
        assert splitter.feed(b"x" * 4096) == []
    (line,) = splitter.feed(b"\n")
    assert (len(line.data), sum(looked) < 2 * len(line.data)) == (256 * 4096 + 1, True)


@pytest.mark.parametrize(
    "head", [b'{"jsonrpc": "2.0", "id": %s, "result": "', b'event: message\ndata: {"id":%s,"result":"']
)
def test_an_answer_that_is_too_long_to_be_read_is_its_calls(head: bytes) -> None:
    reports = Reports()
    one = session(reports)
    for _ in range(2):
        passed = one.from_client(text(id=1, method="tools/call", params={"name": "shot"}), 0)
    (request,) = passed.requests
    assert (
        one.from_server_in_parts(head % str(request.server_id).encode() + b"A" * 9999) == head % b"1" + b"A" * 9999
    )
    assert request.answered
    assert [event.ok for event in reports.events if isinstance(event, ToolEnded)] == [True]
    asks = b'{"id": 1, "method": "sampling/createMessage", "params": "'
    assert (one.from_server_in_parts(asks), len(one.open)) == (asks, 1)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"hello\n",
        b"[1, 2]",
        b"[]",
        b"7",
        b'{"method": "tools/call"}',
        b"\xff\xfe",
        b"[" * 9999,
        b'{"id": 9, "result": 1}',
        b'{"id": null, "method": "tools/call"}',
    ],
)
def test_what_is_none_of_its_business_passes_as_it_is(message: bytes) -> None:
    reports = Reports()
    assert session(reports).from_client(message, 0).data is message
    assert session(reports).from_server(message) is message
    assert reports.events == []


@pytest.mark.parametrize("result", ['{"x": NaN}', r'{"x": "\ud800"}', '"text"', "[]"])
def test_an_answer_that_is_loose_json_is_an_answer(result: str) -> None:
    one = session(Reports())
    one.from_client(text(id=1, method="tools/call", params={}), 0)
    one.from_server(b'{"id": 1, "result": %s}' % result.encode())
    assert one.open == []


def test_whose_calls_they_are() -> None:
    reports = Reports()
    one = session(reports)
    for meta, header in [
        ({}, ""),
        ({}, "header"),
        ({"session_id": "s"}, "header"),
        ({"gen_ai.conversation.id": "c"}, ""),
    ]:
        one.from_client(text(id=1, method="tools/call", params={"name": "look", "_meta": meta}), 0, header)
    (own,) = [event.program_id for event in reports.events if isinstance(event, ProgramArrived)]
    assert [e.program_id for e in reports.events if isinstance(e, ToolStarted)] == [own, "header", "s", "c"]
    one.close()
    assert [event.program_id for event in reports.events if isinstance(event, ProgramEnded)] == [own]
    assert len([event for event in reports.events if isinstance(event, ToolEnded)]) == 4
    named = session(reports, "given")
    named.from_client(text(id=1, method="tools/call", params={}), 0)
    named.close()
    assert not [e for e in reports.events if isinstance(e, ProgramEnded) and e.program_id == "given"], (
        "others end it"
    )


@pytest.mark.parametrize("lines", [b"data: {}\n\n", b"id: 7\r\nevent: message\r\ndata:{\r\ndata: }\r\n\r\n"])
def test_an_event_keeps_what_is_not_its_data(lines: bytes) -> None:
    assert json.loads(event_data(lines)) == {}
    changed = event_with(b'{"a":\n1}', lines)
    assert json.loads(event_data(changed)) == {"a": 1}
    assert mcp_messages.event_id(changed) == mcp_messages.event_id(lines)
