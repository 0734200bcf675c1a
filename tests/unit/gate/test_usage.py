"""What answers say of their own size, in pieces of any length."""

import json

import pytest

from controlplane.gate.replies import ReplyTape
from controlplane.gate.usage import Usage

CHAT = {"prompt_tokens": 70, "completion_tokens": 20, "total_tokens": 90}
OPENAI_WHOLE = json.dumps({"choices": [{"message": {"content": 'a "usage": {'}}], "usage": CHAT})
OPENAI_CACHED = json.dumps({"usage": {**CHAT, "prompt_tokens_details": {"cached_tokens": 64}}, "kv": None})
OPENAI_STREAM = (
    'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}\n\n' * 300
    + f'data: {{"choices":[],"usage":{json.dumps(CHAT)}}}\n\ndata: [DONE]\n\n'
)
RESPONSES = json.dumps(
    {
        "output": [],
        "usage": {"input_tokens": 70, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 20},
    }
)
RESPONSES_STREAM = f'data: {{"type": "response.completed", "response": {RESPONSES}}}\n\n'
OPENAI_LONG = json.dumps({"choices": [{"message": {"content": "x"}, "logprobs": ["y" * 100] * 400}], "usage": CHAT})
ANTHROPIC = (
    'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":6,"output_tokens":1,'
    '"cache_read_input_tokens":64}}}\n\n'
    + 'event: content_block_delta\ndata: {"delta":{"text":"x"}}\n\n' * 500
    + 'event: message_delta\ndata: {"usage":{"output_tokens":20}}\n\nevent: message_stop\ndata: {}\n\n'
)
GENERATE = json.dumps(
    {
        "text": "x",
        "meta_info": {"prompt_tokens": 70, "completion_tokens": 20, "cached_tokens": 64, "e2e_latency": 1.5},
    }
)
PLAIN = Usage(prompt_tokens=70, output_tokens=20)
CACHED = Usage(prompt_tokens=70, output_tokens=20, cached_tokens=64)


def usage_in(path: str, text: str, piece: int) -> Usage | None:
    tape, data = ReplyTape(path, {}), text.encode()
    tape.begin(200, [(b"content-type", b"text/event-stream" if "data: " in text else b"application/json")])
    for start in range(0, len(data), piece):
        tape.add(data[start : start + piece])
    tape.add(b"", is_last=True)
    return tape.usage


@pytest.mark.parametrize("piece", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize(
    ("path", "text", "usage"),
    [
        ("/v1/chat/completions", OPENAI_WHOLE, PLAIN),
        ("/v1/chat/completions", OPENAI_CACHED, CACHED),
        ("/v1/chat/completions", OPENAI_LONG, PLAIN),
        ("/v1/chat/completions", OPENAI_STREAM, PLAIN),
        ("/v1/responses", RESPONSES, CACHED),
        ("/v1/responses", RESPONSES_STREAM, CACHED),
        ("/v1/messages", ANTHROPIC, CACHED),
        ("/generate", GENERATE, CACHED),
    ],
    ids=["whole", "cached", "long", "stream", "responses", "responses stream", "anthropic", "generate"],
)
def test_usage_is_found_whatever_the_interface_and_the_pieces(
    path: str, text: str, usage: Usage, piece: int
) -> None:
    assert usage_in(path, text, piece) == usage


@pytest.mark.parametrize(
    "text",
    [
        "",
        "data: {}\n\n",
        '{"usage": null}',
        '{"usage": {}}',
        '{"usage": {"prompt_tokens": "many"}}',
        '{"usage": {"prompt_tokens": -1}}',
        '{"usage": {"prompt_tokens": true}}',
        '{"usage": {"prompt_tokens": 7',
        '{"usage": ' + '{"a":' * 2000,
    ],
)
def test_an_answer_that_says_nothing_readable_says_nothing(text: str) -> None:
    assert usage_in("/v1/chat/completions", text, 1 << 20) is None
