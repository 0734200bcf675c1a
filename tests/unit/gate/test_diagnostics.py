"""Cache diagnostics as Anthropic's and OpenAI's APIs have them: what is asked, what is answered, no more."""

import asyncio
import copy
import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.model.causes import Cause
from controlplane.gate import Gate, GateMiddleware
from controlplane.gate.diagnostics import Answered, Compared, Question, question_in

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
LOST = Compared(cause=Cause.TOOLS_REORDERED, kept_ratio=0.25, tokens=4000)
ANTHROPIC_LOST = {"cache_miss_reason": {"type": "tools_changed", "cache_missed_input_tokens": 3000}}
OPENAI_LOST = {
    "type": "cache_miss",
    "reason": "tools_changed",
    "cache_missed_tokens": 3000,
    "comparison_reusable_tokens": 4000,
}


def anthropic(previous: str | None = "msg_1") -> Question:
    return Question(previous=previous, is_anthropic=True)


def openai() -> Question:
    return Question(previous="resp_1", is_anthropic=False)


@pytest.mark.parametrize(
    ("path", "body", "asks"),
    [
        (MESSAGES, {"diagnostics": {"previous_message_id": "msg_1"}}, anthropic()),
        (MESSAGES, {"diagnostics": {"previous_message_id": None}}, anthropic(None)),
        (MESSAGES, {"diagnostics": {}}, None),
        (MESSAGES, {"diagnostics": {"previous_message_id": 7}}, None),
        (MESSAGES, {}, None),
        (RESPONSES, {"prompt_cache_options": {"comparison_response_id": "resp_1"}}, openai()),
        (RESPONSES, {"prompt_cache_options": {"comparison_response_id": None}}, None),
        (RESPONSES, {"diagnostics": {"previous_message_id": "msg_1"}}, None),
        ("/v1/chat/completions", {"prompt_cache_options": {"comparison_response_id": "resp_1"}}, None),
    ],
)
def test_what_is_asked(path: str, body: dict[str, Any], asks: Question | None) -> None:
    assert question_in(path, body) == asks


@pytest.mark.parametrize(
    ("question", "found", "answer"),
    [
        (anthropic(None), None, None),
        (anthropic(), None, {"cache_miss_reason": {"type": "previous_message_not_found"}}),
        (anthropic(), LOST, ANTHROPIC_LOST),
        (anthropic(), Compared(cause=Cause.NONE, kept_ratio=1.0, tokens=1), None),
        (openai(), None, {"type": "comparison_response_not_found"}),
        (openai(), LOST, OPENAI_LOST),
        (openai(), Compared(cause=Cause.NONE, kept_ratio=1.0, tokens=1), {"type": "cache_hit"}),
    ],
)
def test_what_is_answered(question: Question, found: Compared | None, answer: Any) -> None:
    assert question.answer(found) == answer


@pytest.mark.parametrize(
    ("cause", "by_anthropic", "by_openai"),
    [
        (Cause.MODEL, "model_changed", "model_changed"),
        (Cause.VOLATILE, "system_changed", "input_changed"),
        (Cause.TOOLS_ADDED, "tools_changed", "tools_changed"),
        (Cause.RESULT, "messages_changed", "input_changed"),
        (Cause.COMPACTED, "messages_changed", "context_compacted"),
    ],
)
def test_the_words_are_the_apis_own(cause: Cause, by_anthropic: str, by_openai: str) -> None:
    found = Compared(cause=cause, kept_ratio=0.5, tokens=100)
    assert anthropic().answer(found)["cache_miss_reason"]["type"] == by_anthropic
    assert openai().answer(found)["reason"] == by_openai


def passed(
    question: Question, pieces: list[bytes], kind: str, status: int = 200
) -> tuple[dict[bytes, bytes], bytes]:
    """The headers and the body that a client gets."""
    sent: list[Any] = []

    async def run() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        answered = Answered(send, question, lambda: question.answer(LOST))
        length = str(sum(map(len, pieces))).encode()
        headers = [(b"content-type", kind.encode()), *([] if "stream" in kind else [(b"content-length", length)])]
        await answered({"type": "http.response.start", "status": status, "headers": headers})
        for number, piece in enumerate(pieces, 1):
            more = number < len(pieces)
            await answered({"type": "http.response.body", "body": piece, "more_body": more})

    asyncio.run(run())
    assert [each["type"] for each in sent[:2]] == ["http.response.start", "http.response.body"]
    assert not sent[-1]["more_body"]
    return dict(sent[0]["headers"]), b"".join(each["body"] for each in sent[1:])


WHOLE = b'{"id":"msg_2","usage":{"input_tokens":7},"content":[{"type":"text","text":"}"}]}'


def test_a_whole_reply_gets_one_field_and_its_length() -> None:
    headers, body = passed(anthropic(), [WHOLE[:30], WHOLE[30:]], "application/json")
    assert json.loads(body) == json.loads(WHOLE) | {"diagnostics": ANTHROPIC_LOST}
    assert body.startswith(WHOLE[:-1])
    assert int(headers[b"content-length"]) == len(body)


def test_an_error_passes_as_it_is() -> None:
    headers, body = passed(anthropic(), [b'{"type":"error"}'], "application/json", status=400)
    assert (body, headers[b"content-length"]) == (b'{"type":"error"}', b"16")


STREAM = (
    b'event: message_start\ndata: {"type": "message_start", "message": {"id": "msg_2"}}\n\n'
    b": ping\n\n"
    b'event: content_block_delta\r\ndata: {"delta": {"text": "message_start"}}\r\n\r\n'
    b'event: message_stop\ndata: {"type": "message_stop"}\n\n'
)
TOLD = STREAM.replace(
    b'{"id": "msg_2"}', b'{"id": "msg_2", "diagnostics": %s}' % json.dumps(ANTHROPIC_LOST).encode()
)


@given(cuts=st.sets(st.integers(1, len(STREAM) - 1), max_size=6))
def test_of_a_stream_one_event_gets_the_field_wherever_it_is_cut(cuts: set[int]) -> None:
    bounds = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in pairwise(bounds)]
    assert passed(anthropic(), pieces, "text/event-stream")[1] == TOLD


def test_a_long_event_is_looked_at_once() -> None:
    event = b'data: {"x": "' + b"a" * 900_000 + b'"}\n\n'
    begun_s = time.process_time()
    body = passed(
        anthropic(), [event[at : at + 64] for at in range(0, len(event), 64)] + [STREAM], "text/event-stream"
    )[1]
    assert time.process_time() - begun_s < 10 and body == event + TOLD


def test_of_responses_the_last_event_gets_it() -> None:
    created = b'event: response.created\ndata: {"type": "response.created", "response": {"id": "resp_2"}}\n\n'
    stream = created + created.replace(b"created", b"completed") + b"data: [DONE]\n\n"
    _, body = passed(openai(), [stream], "text/event-stream")
    first, last, done, _ = body.split(b"\n\n")
    assert (first + b"\n\n", done) == (created, b"data: [DONE]")
    assert json.loads(last.partition(b"data: ")[2])["response"]["prompt_cache_diagnostics"] == OPENAI_LOST


def test_a_client_that_asks_is_told_what_it_changed() -> None:
    """Through a gate: the second request names the first reply, and has its tools in another order."""
    body: dict[str, Any] = {
        "model": "m",
        "tools": [{"name": name, "input_schema": {"type": "object"}} for name in ("read", "write")],
        "messages": [{"role": "user", "content": "words " * 100}],
        "diagnostics": {"previous_message_id": None},
    }
    later = copy.deepcopy(body)
    later["tools"].reverse()
    later["diagnostics"]["previous_message_id"] = "msg_1"
    unknown = later | {"diagnostics": {"previous_message_id": "msg_9"}}
    ask = asking()
    replies = [json.loads(ask(each)) for each in (body, later, unknown)]
    reasons = [(reply["diagnostics"] or {}).get("cache_miss_reason", {}) for reply in replies]
    assert [reason.get("type") for reason in reasons] == [None, "tools_changed", "previous_message_not_found"]
    assert 0 < reasons[1]["cache_missed_input_tokens"] <= 500


def asking() -> Any:
    """What the gate's client gets for a body; its engine counts 500 tokens in each prompt."""
    replies = iter(range(1, 10))

    async def engine(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        usage = {"input_tokens": 500, "output_tokens": 2}
        reply = {"id": f"msg_{next(replies)}", "type": "message", "content": [], "usage": usage}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(reply).encode()})

    gate = GateMiddleware(engine, Gate(send=lambda event, urgent: None, now_ns=lambda: 0))

    def ask(body: dict[str, Any]) -> bytes:
        sent: list[Any] = []
        messages = [{"type": "http.request", "body": json.dumps(body).encode()}]

        async def receive() -> Any:
            return messages.pop() if messages else await asyncio.sleep(3600)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"x-session-id", b"p")]
        asyncio.run(gate({"type": "http", "method": "POST", "path": MESSAGES, "headers": headers}, receive, send))
        return b"".join(each.get("body", b"") for each in sent)

    return ask
