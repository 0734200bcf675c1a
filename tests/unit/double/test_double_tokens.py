"""vLLM's tokens in, tokens out on the double."""

import json
from typing import Any

import pytest

from controlplane.lab.double.chat_request import BadRequest
from controlplane.lab.double.replies import Usage
from controlplane.lab.double.tokens_api import TokensFormat, parse_tokens

USAGE = Usage(prompt_tokens=40, output_tokens=3, cached_tokens=16)


@pytest.mark.parametrize(
    "wrong", [{"token_ids": None}, {"token_ids": [1, True]}, {"token_ids": [-1]}, {"sampling_params": 3}]
)
def test_a_wrong_request_is_refused_by_its_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(wrong))):
        parse_tokens({"token_ids": [1], "sampling_params": {}, **wrong})


def test_a_prompt_goes_on_in_blocks_and_a_stream_says_what_the_whole_reply_says() -> None:
    body: dict[str, Any] = {"token_ids": list(range(40)), "sampling_params": {"max_tokens": 3, "logprobs": 1}}
    first, longer = (parse_tokens(body | {"token_ids": list(range(size))}).messages for size in (40, 50))
    assert [len(each.text.split()) for each in first] == [16, 16, 8]
    assert longer[:2] == first[:2]
    form = TokensFormat(body, turn_id="t", model="m", created_s=1)
    (choice,) = json.loads(form.whole("weir gate race", "length", USAGE))["choices"]
    stream = form.first_chunk() + form.chunk("weir gate") + form.chunk(" race") + form.last_chunks("length", USAGE)
    *parts, done = (line.removeprefix("data: ") for line in stream.splitlines() if line)
    choices = [json.loads(part)["choices"][0] for part in parts]
    assert [each for part in choices for each in part["token_ids"]] == choice["token_ids"]
    assert (done, choices[-1]["finish_reason"], len(choice["logprobs"]["content"])) == ("[DONE]", "length", 3)
