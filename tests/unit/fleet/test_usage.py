"""What answers say of their own size, in pieces of any length."""

import json

import pytest

from controlplane.fleet.usage import AnswerEnds, Usage

CHAT = {"prompt_tokens": 70, "completion_tokens": 20, "total_tokens": 90}
OPENAI_WHOLE = json.dumps({"choices": [{"message": {"content": 'a "usage": {'}}], "usage": CHAT})
OPENAI_CACHED = json.dumps({"usage": {**CHAT, "prompt_tokens_details": {"cached_tokens": 64}}, "kv": None})
OPENAI_STREAM = (
    'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}\n\n' * 3000
    + f'data: {{"choices":[],"usage":{json.dumps(CHAT)}}}\n\ndata: [DONE]\n\n'
)
RESPONSES = json.dumps(
    {
        "output": [],
        "usage": {"input_tokens": 70, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 20},
    }
)
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


@pytest.mark.parametrize("piece", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize(
    ("text", "usage"),
    [
        (OPENAI_WHOLE, PLAIN),
        (OPENAI_CACHED, CACHED),
        (OPENAI_STREAM, PLAIN),
        (RESPONSES, CACHED),
        (ANTHROPIC, CACHED),
        (GENERATE, CACHED),
    ],
    ids=["whole", "cached", "stream", "responses", "anthropic", "generate"],
)
def test_usage_is_found_whatever_the_interface_and_the_pieces(text: str, usage: Usage, piece: int) -> None:
    data = text.encode()
    if piece == 1:
        data = data[-9000:] if text is not ANTHROPIC else data[:4096] + data[-8192:]
    ends = AnswerEnds()
    for start in range(0, len(data), piece):
        ends.add(data[start : start + piece])
    assert ends.usage() == usage
    assert ends.is_over == (text in (OPENAI_STREAM, ANTHROPIC))


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
    ends = AnswerEnds()
    ends.add(text.encode())
    assert ends.usage() is None
