"""Which tools a reply calls, in each API's form, whole and streamed."""

import json
from typing import Any

import pytest

from controlplane.gate import replies
from controlplane.gate.replies import ReplyReader, ReplyTape

CHAT, TEXT, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
BASH = "THOUGHT: look.\n\n```bash\nls -la && pytest -q\n```\n"
TOOLS: dict[str, Any] = {"tools": [{"type": "function"}]}


def whole(value: Any) -> tuple[str, bytes]:
    return "application/json", json.dumps(value).encode()


def streamed(*values: Any) -> tuple[str, bytes]:
    lines = [f"event: x\ndata: {json.dumps(value)}\n\n" for value in values]
    return "text/event-stream; charset=utf-8", "".join([*lines, ": a comment\n\n", "data: [DONE]\n\n"]).encode()


def chat(**message: Any) -> Any:
    return {"choices": [{"index": 0, "message": message}]}


def delta(**delta: Any) -> Any:
    return {"choices": [{"index": 0, "delta": delta}]}


def call(name: str) -> Any:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}


def names(path: str, reply: tuple[str, bytes], request: Any = None, reader: ReplyReader | None = None) -> Any:
    return (reader or ReplyReader()).names("p", request or {}, path, *reply)


@pytest.mark.parametrize(
    ("path", "reply", "expected"),
    [
        (CHAT, whole(chat(content=None, tool_calls=[call("a"), call("b")])), ("a", "b")),
        (CHAT, whole(chat(content="", function_call={"name": "old", "arguments": "{}"})), ("old",)),
        (CHAT, whole(chat(content=BASH)), ("ls", "pytest")),
        (
            CHAT,
            streamed(
                delta(role="assistant"),
                delta(tool_calls=[{"index": 0, **call("get_weather")}]),
                delta(tool_calls=[{"index": 0, "function": {"arguments": '{"city"'}}]),
                delta(tool_calls=[{"index": 1, **call("now")}]),
                {"choices": [], "usage": {}},
            ),
            ("get_weather", "now"),
        ),
        (CHAT, streamed(*(delta(content=part) for part in (BASH[:20], BASH[20:30], BASH[30:]))), ("ls", "pytest")),
        (
            CHAT,
            whole(
                {"choices": [{"index": 1, "message": {"content": BASH}}, {"index": 0, "message": {"content": "x"}}]}
            ),
            None,
        ),
        (TEXT, whole({"choices": [{"text": BASH}]}), ("ls", "pytest")),
        (TEXT, streamed(*({"choices": [{"text": part}]} for part in (BASH[:9], BASH[9:]))), ("ls", "pytest")),
        (GENERATE, whole({"text": BASH}), ("ls", "pytest")),
        (GENERATE, whole([{"text": BASH}, {"text": "x"}]), ("ls", "pytest")),
        (GENERATE, streamed({"text": BASH[:30]}, {"text": BASH}), ("ls", "pytest")),
        (
            MESSAGES,
            whole({"content": [{"type": "text", "text": "hm"}, {"type": "tool_use", "name": "Bash", "input": {}}]}),
            ("Bash",),
        ),
        (
            MESSAGES,
            streamed(
                {"type": "message_start", "message": {"content": []}},
                {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "Read"}},
                {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{}"}},
                {"type": "message_stop"},
            ),
            ("Read",),
        ),
        (
            MESSAGES,
            streamed(*({"delta": {"type": "text_delta", "text": part}} for part in (BASH[:9], BASH[9:]))),
            ("ls", "pytest"),
        ),
        (
            RESPONSES,
            whole({"output": [{"type": "message", "content": []}, {"type": "function_call", "name": "f"}]}),
            ("f",),
        ),
        (
            RESPONSES,
            streamed(
                {"type": "response.created"},
                {"type": "response.completed", "response": {"output": [{"type": "function_call", "name": "g"}]}},
            ),
            ("g",),
        ),
        (RESPONSES, whole({"output": [{"type": "message", "content": [{"text": BASH}]}]}), ("ls", "pytest")),
    ],
)
def test_the_calls_of_a_reply(path: str, reply: tuple[str, bytes], expected: Any) -> None:
    assert names(path, reply) == expected


SHELL = '{"command": "cd /repo && timeout 60 pytest -q"}'
PARTS = SHELL[:11], SHELL[11:30], SHELL[30:]


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        (CHAT, whole(chat(tool_calls=[{"function": {"name": "bash", "arguments": SHELL}}]))),
        (
            CHAT,
            streamed(
                delta(tool_calls=[{"index": 0, "function": {"name": "bash", "arguments": ""}}]),
                *(delta(tool_calls=[{"index": 0, "function": {"arguments": part}}]) for part in PARTS),
            ),
        ),
        (MESSAGES, whole({"content": [{"type": "tool_use", "name": "Bash", "input": json.loads(SHELL)}]})),
        (
            MESSAGES,
            streamed(
                {"content_block": {"type": "tool_use", "name": "Bash", "input": {}}},
                *({"delta": {"type": "input_json_delta", "partial_json": part}} for part in PARTS),
            ),
        ),
        (RESPONSES, whole({"output": [{"type": "function_call", "name": "shell", "arguments": SHELL}]})),
    ],
)
def test_a_shell_s_call_goes_by_the_program_that_it_runs(path: str, reply: tuple[str, bytes]) -> None:
    assert names(path, reply) == ("pytest",)


def test_a_reply_without_a_call_says_something_only_where_one_would_have_been_found() -> None:
    plain, reader = whole(chat(content="All done.")), ReplyReader()
    assert names(CHAT, plain, reader=reader) is None, "its form may be one that nobody knows"
    assert names(CHAT, plain, TOOLS, reader) == ()
    assert names(CHAT, whole(chat(content=BASH)), reader=reader) == ("ls", "pytest")
    assert names(CHAT, plain, reader=reader) == (), "this program writes its calls into the text"
    assert reader.names("another", {}, CHAT, *plain) is None


def test_programs_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "_MOST_PROGRAMS", 2)
    reader = ReplyReader()
    for name in ("a", "b", "a", "c"):
        reader.names(name, {}, CHAT, *whole(chat(content=BASH)))
    assert [reader.names(name, {}, CHAT, *whole(chat(content="x"))) for name in "abc"] == [(), None, ()]


@pytest.mark.parametrize("path", [CHAT, TEXT, GENERATE, MESSAGES, RESPONSES])
@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"5", b"null", b'{"choices": 5}', b'{"content": [5]}', b'{"output": [[]]}', b"\xff"]
)
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_what_is_no_reply_tells_nothing(path: str, data: bytes, kind: str) -> None:
    assert names(path, (kind, b"data: " + data if kind != "application/json" else data)) is None


def test_the_tape_keeps_a_good_reply_of_a_bearable_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "_MOST_BYTES", 10)
    tape = ReplyTape()
    assert tape.data is None
    tape.begin(200, [(b"x", b"1"), (b"Content-Type", b"application/json")])
    tape.add(b"12345")
    tape.add(b"67890")
    assert (tape.content_type, tape.data) == ("application/json", b"1234567890")
    tape.add(b"1")
    tape.add(b"")
    assert tape.data is None
    refused = ReplyTape()
    refused.begin(503, [])
    refused.add(b"no")
    assert refused.data is None
