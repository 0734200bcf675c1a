"""Prompts have the length the trace says and repeat what came before."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from controlplane.lab.load.prompts import Conversation
from controlplane.lab.workload.trace import Turn


def words(messages: object) -> int:
    return sum(len(m["content"].split()) for m in msgspec.json.decode(msgspec.json.encode(messages)))


def turn(input_tokens: int, output_tokens: int) -> Turn:
    return Turn(input_tokens=input_tokens, output_tokens=output_tokens)


@given(
    st.lists(st.tuples(st.integers(2, 400), st.integers(1, 50)), min_size=1, max_size=6),
    st.integers(0, 300),
)
def test_prompt_length_is_the_traces_for_any_history(turns: list[tuple[int, int]], shared: int) -> None:
    conversation = Conversation(seed="s", shared_prefix_tokens=shared)
    last: tuple[int, ...] = ()
    for input_tokens, output_tokens in turns:
        sent = words(conversation.prompt(turn(input_tokens, output_tokens)))
        # A turn that adds nothing to the history, with the last reply or without it, still has to say something.
        assert sent == input_tokens or (input_tokens in last and sent == input_tokens + 1)
        conversation.reply(" ".join(["w"] * output_tokens))
        last = (input_tokens, input_tokens + output_tokens)
        if sent != input_tokens:
            return


@given(st.lists(st.integers(100, 20_000), min_size=1, max_size=8), st.integers(2, 64))
def test_a_word_may_stand_for_many_tokens(growths: list[int], tokens_per_word: int) -> None:
    conversation = Conversation(seed="s", shared_prefix_tokens=2000, tokens_per_word=tokens_per_word)
    tokens = 0
    for growth in growths:
        tokens += growth
        sent = words(conversation.prompt(turn(tokens, 40))) * tokens_per_word
        assert abs(sent - tokens) <= 2 * tokens_per_word
        conversation.reply(" ".join(["w"] * (40 // tokens_per_word)), prompt_tokens=7, output_tokens=7)
        tokens += 40


def test_a_reply_that_the_next_prompt_has_no_room_for_is_left_out() -> None:
    conversation = Conversation(seed="s", shared_prefix_tokens=20)
    first = list(conversation.prompt(turn(100, 50)))
    conversation.reply(" ".join(["thought"] * 50))
    second = list(conversation.prompt(turn(110, 5)))
    assert second[: len(first)] == first
    assert len(second) == len(first) + 1
    assert words(second) == 110


def test_compaction_starts_a_fresh_history_after_the_system_message() -> None:
    conversation = Conversation(seed="s", shared_prefix_tokens=20)
    before = list(conversation.prompt(turn(100, 10)))
    conversation.reply("done")
    after = conversation.prompt(turn(60, 10))
    assert words(after) == 60
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert len(after) == 2


def test_an_engines_own_count_corrects_ours() -> None:
    conversation = Conversation(seed="s", shared_prefix_tokens=10)
    conversation.prompt(turn(100, 10))
    conversation.reply("a b c", prompt_tokens=130, output_tokens=10)
    grown = conversation.prompt(turn(200, 10))
    tool_message = msgspec.json.decode(grown[-1])
    assert len(tool_message["content"].split()) == 60
