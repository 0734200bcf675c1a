"""Requests, prompt sizes and reuse, replies, options."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.model.errors import ConfigError
from controlplane.lab.double.app import APIS, Api
from controlplane.lab.double.chat_request import BadRequest, ChatMessage, parse_chat
from controlplane.lab.double.conversations import Conversations
from controlplane.lab.double.options import DoubleOptions
from controlplane.lab.double.replies import ReplyFormat, Usage, reply_text
from controlplane.lab.double.responses_api import parse_responses
from controlplane.lab.double.script import read_script

RESPONSES = ["input", "instructions", "max_output_tokens", "tools", "tool_choice", "include"]


def messages(*texts: str) -> list[ChatMessage]:
    roles = ["system", *["user", "assistant"] * len(texts)]
    return [ChatMessage(role=role, text=text) for role, text in zip(roles, texts, strict=False)]


def test_a_prompt_that_continues_reuses_all_that_was_there() -> None:
    conversations = Conversations(tokens_per_word=10)
    first = conversations.take("p", messages("be good", "do it"))
    assert (first.tokens, first.reusable_tokens, first.prefix_tokens) == (40, 0, 20)
    conversations.add_reply(first.context, 2, "well done then")
    second = conversations.take("p", messages("be good", "do it", "well done then", "more"))
    assert (second.tokens, second.reusable_tokens, second.context) == (80, 70, first.context)
    assert second.prefix_group == first.prefix_group != ""


def test_content_decides_and_not_who_sends_it() -> None:
    handed: list[tuple[str, str]] = []
    conversations = Conversations(tokens_per_word=1, hand_over=lambda key, to: not handed.append((key, to)))
    first = conversations.take("anonymous-1", messages("s", "a"))
    conversations.add_reply(first.context, 2, "x")
    second = conversations.take("anonymous-2", messages("s", "a", "x", "b"))
    assert (second.reusable_tokens, handed) == (3, [(first.context, second.context)])
    title = conversations.take("anonymous-2", messages("give a title", "a"))
    assert (title.reusable_tokens, title.context != second.context) == (0, True)
    conversations.add_reply(second.context, 4, "y")
    assert conversations.take("anonymous-2", messages("s", "a", "x", "b", "y", "c")).reusable_tokens == 5


def test_a_changed_message_ends_the_reuse() -> None:
    conversations = Conversations(tokens_per_word=1)
    conversations.take("p", messages("s", "a", "b", "c"))
    assert conversations.take("q", messages("s", "a", "y", "c")).reusable_tokens == 0, "another's, from its middle"
    assert conversations.take("p", messages("s", "a", "x", "c")).reusable_tokens == 2


def test_a_reply_to_an_older_prompt_is_not_taken_for_the_newer_ones() -> None:
    conversations = Conversations(tokens_per_word=1)
    first = conversations.take("p", messages("s", "a"))
    conversations.take("p", messages("s", "a", "b", "c"))
    conversations.add_reply(first.context, 2, "late")
    assert conversations.take("p", messages("s", "a", "b", "c", "late")).reusable_tokens == 4


def test_contexts_are_forgotten_longest_unused_first() -> None:
    conversations = Conversations(tokens_per_word=1, most=2)
    for name in ("a", "b", "a", "c"):
        conversations.take(name, messages("s", name))
    assert conversations.take("a", messages("s", "a")).reusable_tokens == 2
    assert conversations.take("b", messages("s", "b")).reusable_tokens == 0
    assert len(conversations._by_beginning) <= 8


@given(st.integers(0, 100), st.lists(st.integers(0, 40), max_size=6))
def test_the_pieces_of_a_reply_join_to_the_whole(serial: int, steps: list[int]) -> None:
    ends = [sum(steps[: index + 1]) for index in range(len(steps))]
    starts = [0, *ends[:-1]]
    pieces = [reply_text(serial, start, end) for start, end in zip(starts, ends, strict=False)]
    whole = reply_text(serial, 0, sum(steps))
    assert "".join(pieces) == whole
    assert len(whole.split()) == sum(steps)


def test_replies_are_json_as_openais_clients_read_it() -> None:
    frame = ReplyFormat(turn_id="t", model='a "model"', created_s=1)
    usage = Usage(prompt_tokens=5, output_tokens=3, cached_tokens=2)
    lines = [frame.first_chunk(), frame.chunk(" word"), *frame.last_chunks("length", usage).split("\n\n")]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]
    assert [chunk["model"] for chunk in chunks] == ['a "model"'] * 4
    assert chunks[1]["choices"][0]["delta"] == {"content": " word"}
    assert chunks[2]["choices"][0]["finish_reason"] == "length"
    assert chunks[3]["choices"] == []
    assert chunks[3]["usage"] == json.loads(frame.whole("x", "length", usage))["usage"]
    assert chunks[3]["usage"]["total_tokens"] == 8
    called = ReplyFormat(turn_id="t", model="m", created_s=1, calls=({"id": "c"},)).last_chunks("tool_calls", None)
    (choice,) = json.loads(called.removeprefix("data: ").partition("\n")[0])["choices"]
    assert choice["delta"] == {"tool_calls": [{"index": 0, "id": "c"}]}


def test_content_may_come_in_parts_and_tool_calls_count() -> None:
    parts = [{"type": "text", "text": "a b"}, {"type": "image_url", "image_url": {"url": "data:"}}, "c"]
    body = {
        "messages": [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        ]
    }
    request = parse_chat(body)
    assert [message.text for message in request.messages] == ["a b c", ' [{"id": "1"}]']
    assert (request.output_tokens, request.stream) == (16, False)
    assert parse_chat({**body, "max_tokens": 5, "max_completion_tokens": 6}).output_tokens == 6


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
@given(
    body=st.dictionaries(
        st.sampled_from(["messages", "n", "max_tokens", "stream_options", "stream", *RESPONSES]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=3)
        | st.lists(st.none() | st.integers() | st.fixed_dictionaries({"type": st.just([])}), max_size=2),
    )
)
def test_any_body_is_either_taken_or_refused(api: Api, body: dict[str, Any]) -> None:
    try:
        request = api.parse(body)
        assert request.output_tokens >= 1
        assert api.frame(body, request, "t", "m", 1).first_chunk()
    except BadRequest as problem:
        assert str(problem)


def test_what_a_reply_packs_is_words_again_when_it_comes_back() -> None:
    include = {"include": ["reasoning.encrypted_content"], "tools": [{"type": "custom", "name": "apply_patch"}]}
    body = {"input": [{"role": "user", "content": "x"}], **include}
    usage = Usage(prompt_tokens=1, output_tokens=2, cached_tokens=0)
    frame = APIS["/v1/responses"].frame(body, parse_responses(body), "t", "m", 1)
    whole = json.loads(frame.whole("a b", "length", usage))
    assert [item["type"] for item in whole["output"]] == ["reasoning", "custom_tool_call"]
    again = parse_responses({"input": [*body["input"], *whole["output"]]})
    assert [message.text for message in again.messages][:2] == ["x", "a b"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file"),
        ("{", "truncated"),
        ('{"task": []}', "length >= 1"),
        ('{"task": [{"tokens": 0}]}', ">= 1"),
        ('{"task": [{"calls": [{"name": "bash"}]}]}', "unknown field `name`"),
        ('{"task": [{"token": 5}]}', "unknown field `token`"),
    ],
)
def test_a_wrong_script_is_refused_with_what_is_wrong(tmp_path: Path, text: str | None, problem: str) -> None:
    if text is not None:
        (tmp_path / "script.json").write_text(text)
    with pytest.raises(ConfigError, match=f"script.json: .*{problem}"):
        read_script(tmp_path / "script.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [("port", 70_000), ("time_scale", 0.0), ("tokens_per_word", 0), ("grace_s", -1.0)],
)
def test_options_out_of_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        DoubleOptions(**{field: value})  # type: ignore[arg-type]
