"""What a reply says: one table of forms, each read whole and streamed, cut anywhere, short and long."""

import json
import tracemalloc
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from reply_table import (
    BASH,
    CHAT,
    COHERE,
    DONE,
    ERROR,
    FORMS,
    GENERATE,
    MESSAGES,
    OLLAMA,
    RESPONSES,
    TOOLS,
    Form,
    call,
    chat,
)

from controlplane.gate import replies
from controlplane.gate.replies import ReplyReader, ReplyTape


def called(reader: ReplyReader, program: str, path: str, request: Any, kind: str, *pieces: bytes) -> Any:
    """What the reader says of a reply that came in these pieces."""
    tape = ReplyTape(path, request)
    tape.begin(200, [(b"Content-Type", kind.encode())])
    for piece in pieces:
        tape.add(piece)
    tape.add(b"", is_last=True)
    return reader.called(program, request, tape)


def read(path: str, kind: str, *pieces: bytes) -> Any:
    reader = ReplyReader()
    reader._remember("p")
    return called(reader, "p", path, TOOLS, kind, *pieces)


def written(path: str, parts: list[Any]) -> Iterator[tuple[str, list[bytes]]]:
    """The content types and pieces in which servers may send these parts."""
    texts = ["[DONE]" if part is DONE else json.dumps(part) for part in parts]
    if path == OLLAMA:
        yield "application/x-ndjson", [f"{text}\n".encode() for text in texts]
        return
    if len(texts) == 1:
        yield "application/json", [texts[0].encode()]
        parts, texts = [*parts, DONE], [*texts, "[DONE]"]
    yield "Text/Event-Stream; charset=utf-8", [f"event: x\ndata: {text}\n\n".encode() for text in texts]
    yield "text/event-stream", [f": ping\r\n\r\nid: 1\r\ndata:{text}\r\n\r\n".encode() for text in texts]
    lines = [text if part is DONE else json.dumps(part, indent=1) for text, part in zip(texts, parts, strict=True)]
    yield (
        "text/event-stream",
        ["".join(f"data: {line}\n" for line in text.split("\n")).encode() + b"\n" for text in lines],
    )


def padded(part: Any) -> Any:
    """The part with as much beside what counts as makes it long."""
    if isinstance(part, dict):
        return {"logprobs": [{"text": "x", "tool_calls": [1]}] * 2_000, **part, "usage": {"choices": 1}}
    return [padded(each) for each in part] if isinstance(part, list) else part


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form[1]} {form[0]}")
def test_every_form_however_it_is_sent_and_cut(form: Form) -> None:
    _, path, parts, expected = form
    for kind, pieces in written(path, parts):
        body = b"".join(pieces)
        assert read(path, kind, body) == expected, kind
        for size in (1, 17, 100):
            assert read(path, kind, *(body[i : i + size] for i in range(0, len(body), size))) == expected
        for end in range(len(pieces)):
            assert read(path, kind, *pieces[:end]) in (None, expected), "a reply that is cut proves nothing else"
    for kind, pieces in written(path, [padded(part) for part in parts]):
        body = b"".join(pieces)
        assert read(path, kind, *(body[i : i + 10_000] for i in range(0, len(body), 10_000))) == expected, "long"


def names(data: object, request: Any = None, reader: ReplyReader | None = None, program: str = "p") -> Any:
    return called(
        reader or ReplyReader(), program, CHAT, request or {}, "application/json", json.dumps(data).encode()
    )


def test_an_answer_says_something_only_where_a_call_would_have_been_found() -> None:
    plain, reader = chat(content="All done."), ReplyReader()
    assert names(plain, reader=reader) is None, "its form may be one that nobody knows"
    assert names(plain, TOOLS, reader) == ()
    assert names(plain, {"functions": [{}]}, reader) == ()
    assert names(chat(content=BASH), reader=reader) == ("ls", "pytest")
    assert names(plain, reader=reader) == (), "this program writes its calls into the text"
    assert names(plain, reader=reader, program="another") is None


def test_programs_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "_MOST_PROGRAMS", 2)
    reader = ReplyReader()
    for name in ("a", "b", "a", "c"):
        names(chat(content=BASH), reader=reader, program=name)
    assert [names(chat(content="x"), reader=reader, program=name) for name in "abc"] == [(), None, ()]


NONSENSE = b'\xff [] 5 null "x" {"choices":5} {"content":[5]} {"output":[[]]} {"choices":[{"index":{}}]} {'.split()


@pytest.mark.parametrize("data", [b"", *NONSENSE, b"[" * 100_000, b'{"a":"' + b"x" * 10_000_000])
@pytest.mark.parametrize("path", [CHAT, GENERATE, MESSAGES, RESPONSES, OLLAMA, COHERE])
def test_what_is_no_reply_says_nothing(path: str, data: bytes) -> None:
    assert read(path, "application/json", data) is None
    assert read(path, "text/event-stream", b"data: ", data, b"\n\n") is None


@pytest.mark.parametrize(
    ("status", "headers"),
    [(200, [(b"Content-Encoding", b"gzip")]), (HTTPStatus.BAD_GATEWAY, []), (HTTPStatus.FOUND, [])],
)
def test_what_is_not_sent_plainly_or_not_as_a_reply_is_not_read(status: int, headers: Any) -> None:
    tape = ReplyTape(CHAT, TOOLS)
    tape.begin(status, headers)
    tape.add(json.dumps(chat(content="All done.")).encode(), is_last=True)
    assert ReplyReader().called("p", TOOLS, tape) is None


@pytest.mark.parametrize("streamed", [False, True])
def test_a_reply_of_any_length_is_read_in_bounded_memory(streamed: bool) -> None:
    """Megabytes of ``top_logprobs``, and a text that is no call but a document."""
    token = {"token": "x", "top_logprobs": [{"token": "t", "logprob": -1.0, "bytes": [116]}] * 20}
    if streamed:
        piece = (
            b"data: " + json.dumps({"choices": [{"delta": {"content": "x"}, "logprobs": token}]}).encode() + b"\n\n"
        )
        start, end = b"", b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    else:
        piece, start = json.dumps(token).encode() + b",", b'{"choices": [{"logprobs": {"content": ['
        end = b'{}]}, "message": {"content": "All done."}, "finish_reason": "stop"}]}'
    tape = ReplyTape(CHAT, TOOLS)
    tape.begin(200, [(b"content-type", b"text/event-stream" if streamed else b"application/json")])
    tape.add(start)
    tracemalloc.start()
    for _ in range(300):
        tape.add(piece)
    gate = tracemalloc.Filter(True, "*/controlplane/gate/*")  # not what threads of other tests do meanwhile
    kept = sum(each.size for each in tracemalloc.take_snapshot().filter_traces([gate]).traces)
    tracemalloc.stop()
    tape.add(end, is_last=True)
    assert 0 < kept < 75_000 < 300_000 < 300 * len(piece)
    assert ReplyReader().called("p", TOOLS, tape) == ()
    assert names(chat(content=BASH + "x" * 200_001), TOOLS) is None
    assert (
        names(chat("tool_calls", tool_calls=[call("f", "x" * 1_000_000), *[call("f", "x")] * 499]), TOOLS)
        == ("f",) * 256
    )


@pytest.mark.parametrize(
    ("status", "body", "refused"),
    [(400, {}, True), (503, {}, True), (200, ERROR, True), (200, chat(content="x"), False), (200, "", False)],
)
def test_what_the_engine_s_server_did_not_run(status: int, body: Any, refused: bool) -> None:
    tape = ReplyTape(CHAT, TOOLS)
    tape.begin(status, [])
    tape.add(json.dumps(body).encode(), is_last=True)
    assert bool(tape.refusal) is refused
