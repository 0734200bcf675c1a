"""Whose context a prompt goes on with: of clients that name nobody, and of ids that name more than one program."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.gate.continuity import SOURCE, Continuity, TurnOfContext
from controlplane.gate.identity import Identity, identify
from controlplane.gate.sizing import measure

SYSTEM = {"role": "system", "content": "You work."}
TOOLS = [{"type": "function", "function": {"name": "bash"}}]
TITLE = {"role": "system", "content": "Give it a title."}
Message = dict[str, Any]


def user(text: str, **more: Any) -> Message:
    return {"role": "user", "content": text, **more}


def reply(text: str) -> Message:
    return {"role": "assistant", "content": text}


A1 = (SYSTEM, user("a"))
A2 = (*A1, reply("x"), user("more"))
A3 = (*A2, reply("x"), user("and more"))
B1 = (SYSTEM, user("b"))
B2 = (*B1, reply("y"), user("more"))
B3 = (*B2, reply("y"), user("and more"))


class Client:
    """Sends requests; each is over at once unless it ``stays``."""

    def __init__(self, most: int = 100) -> None:
        self.continuity = Continuity(most)
        self.last: Identity | None = None
        self.turns: dict[str, TurnOfContext] = {}

    def asks(
        self,
        *messages: Message,
        stays: bool = False,
        name: str = "messages",
        response: str = "",
        headers: tuple[tuple[str, str], ...] = (),
        session: str = "",
        **more: Any,
    ) -> str:
        """The program that it is."""
        headers = (*headers, *((("x-session-id", session),) if session else ()))
        body = {name: list(messages), **more}
        identity = identify([(key.encode(), value.encode()) for key, value in headers], body)
        self.last, turn = self.continuity.name(identity, body, measure(body))
        assert not self.last.anonymous
        if stays:
            self.turns[self.last.program_id] = turn
        else:
            turn.over(response)
        return self.last.program_id


def test_who_goes_on_is_the_same_program() -> None:
    client = Client()
    first = client.asks(SYSTEM, user("a"))
    assert client.last is not None and client.last.source == SOURCE and first.startswith("continued-")
    other = client.asks(SYSTEM, user("b"))
    assert client.asks(SYSTEM, user("a"), reply("x"), user("more")) == first
    assert client.asks(SYSTEM, user("b"), reply("x"), user("more")) == other != first
    assert client.asks(SYSTEM, user("a"), reply("x"), user("more"), reply("y"), user("and more")) == first


def test_a_retry_is_the_same_program_and_a_twin_at_the_same_time_is_not() -> None:
    client = Client()
    first = client.asks(SYSTEM, user("a"))
    assert client.asks(SYSTEM, user("a"), stays=True) == first
    twin = client.asks(SYSTEM, user("a"), stays=True)
    assert twin != first
    client.turns[twin].over()
    client.turns[first].over()
    assert client.asks(SYSTEM, user("a"), reply("x"), user("more")) == first
    assert client.asks(SYSTEM, user("a")) not in (first, twin), "the first has gone on"


def test_a_longer_prompt_beside_an_open_turn_is_its_program_s() -> None:
    client = Client()
    first = client.asks(user("a"), stays=True)
    assert client.asks(user("a"), reply("x"), user("b"), stays=True) == first


def test_last_messages_that_were_changed_leave_it_the_same_and_its_first_ones_do_not() -> None:
    client = Client()
    first = client.asks(SYSTEM, user("a"))
    assert client.asks(SYSTEM, user("a"), reply("x"), user("more")) == first
    assert client.asks(SYSTEM, user("a"), reply("x"), user("instead")) == first
    assert client.asks(SYSTEM, user("a summary"), user("more")) != first


def test_marks_for_a_cache_that_move_change_nothing() -> None:
    client = Client()
    mark = {"cache_control": {"type": "ephemeral"}}
    first = client.asks(user([{"type": "text", "text": "a", **mark}]), system="s")  # type: ignore[arg-type]
    blocks = [{"type": "text", "text": "a"}]
    assert client.asks(user(blocks), reply("x"), user("b", **mark), system="s") == first  # type: ignore[arg-type]
    assert client.asks(user(blocks), reply("x"), user("b"), user("c"), system="t") != first  # type: ignore[arg-type]


def test_a_chain_of_responses_is_a_program() -> None:
    client = Client()
    first = client.asks(user("a"), name="input", response="resp_1")
    assert client.asks(user("a"), reply("x"), user("b"), name="input", response="resp_2") == first
    assert client.asks(user("c"), name="input", previous_response_id="resp_2", response="resp_3") == first
    assert client.asks(user("c"), name="input", previous_response_id="resp_1") == first, "it went another way"
    assert client.asks(user("c"), name="input", previous_response_id="resp_of_nobody") != first


KEYS = [(("authorization", f"Bearer {name}"),) for name in ("one", "two")]
CLAIM = (("x-penstock-tenant", identify([(b"authorization", b"Bearer one")], {}).account),)


@pytest.mark.parametrize("other", [KEYS[1], CLAIM, ()])
def test_accounts_share_no_context_and_nobody_gets_one_by_a_claim(other: Any) -> None:
    client = Client()
    first = client.asks(*A1, headers=KEYS[0], name="input", response="resp_1")
    assert client.asks(*A2, headers=other, name="input") != first
    assert client.asks(user("b"), headers=other, name="input", previous_response_id="resp_1") != first
    assert client.asks(*A2, headers=KEYS[0], name="input") == first


def test_what_one_account_asks_for_titles_with_is_no_title_of_another() -> None:
    client = Client()
    client.asks(*A1, tools=TOOLS, session="s", headers=KEYS[0])
    assert client.asks(TITLE, user("a"), session="s", headers=KEYS[0]) != "s"
    assert client.asks(TITLE, user("a"), session="t", headers=KEYS[1]) == "t"


def test_a_flood_of_one_account_has_no_other_forgotten() -> None:
    client = Client(most=20)
    first = client.asks(*A1, headers=KEYS[0])
    for number in range(100):
        client.asks(SYSTEM, user(f"flood {number}"), headers=KEYS[1])
    assert client.asks(*A2, headers=KEYS[0]) == first


@pytest.mark.parametrize("most", [0, 100])
def test_what_is_no_chat_and_what_is_named_to_us_stays_as_it_is(most: int) -> None:
    bodies: list[dict[str, Any]] = [{"prompt": "text"}, {"messages": []}, {"messages": "text"}, {}]
    bodies.append({"messages": [user("a")], "program_id": "p"})
    bodies += [{"messages": [user("a")]}, {"messages": [user("a")], "session_id": "s"}] if not most else []
    for body in bodies:
        identity = identify([], body)
        assert Continuity(most).name(identity, body, measure(body))[0] is identity


def test_so_many_contexts_are_remembered_and_no_more() -> None:
    client = Client(most=2)
    first, second, third = (client.asks(user(text)) for text in "abc")
    assert client.asks(user("b"), reply("x"), user("more")) == second
    assert client.asks(user("c"), reply("x"), user("more")) == third
    assert client.asks(user("a"), reply("x"), user("more")) != first
    assert len(client.continuity._contexts) == 2
    assert set(client.continuity._found.values()) == set(client.continuity._contexts)


# -- ids ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("story", "programs"),
    [
        ([A1, A2, B1, B2, B3], "11111"),  # rewritten, as by a compaction, and nobody goes on with what was
        ([A1, A2, B1, A3, B2], "11111"),  # B went no further when A came back; now it does
        ([A1, A2, B1, B2, A3, B3], "111112"),  # both go on by turns: A has the id's name, as it had it first
        ([A1, A2, B1, B2, A3, (SYSTEM, user("c"))], "111112"),  # and the id is believed no more
    ],
)
def test_an_id_is_believed_until_two_of_its_contexts_go_on_by_turns(story: Any, programs: str) -> None:
    client = Client()
    found = [client.asks(*messages, tools=TOOLS, session="s") for messages in story]
    numbers = {name: str(number) for number, name in enumerate(dict.fromkeys(found), start=1)}
    assert "".join(numbers[name] for name in found) == programs
    assert found[0] == "s"


def test_conversations_at_one_time_are_programs() -> None:
    client = Client()
    assert client.asks(*A1, tools=TOOLS, session="s", stays=True) == "s"
    other = client.asks(*B1, tools=TOOLS, session="s")
    assert other.startswith("s~") and client.last is not None and not client.last.parent_id
    assert client.asks(*A2, tools=TOOLS, session="s") == "s"
    assert client.asks(*B2, tools=TOOLS, session="s") == other
    assert client.asks(*A1, tools=TOOLS, session="another") == "another"


def test_a_request_for_a_title_is_a_program_of_one_turn_beside_its_conversation() -> None:
    client = Client()
    assert client.asks(TITLE, user("a"), session="s", stays=True) == "s", "it came first, and none was seen before"
    assert client.asks(*A1, tools=TOOLS, session="s") == "s"
    for session, is_open in (("s", False), ("s", True), ("t", False)):
        if is_open:
            client.asks(*A2, tools=TOOLS, session=session, stays=True)
        title = client.asks(TITLE, user("a"), session=session)
        told = client.last
        assert told is not None and title.startswith(f"{session}~")
        assert (told.parent_id, told.within, told.aside, told.is_one_turn) == (session, True, True, True)
    assert client.asks(*A1, tools=TOOLS, session="t") == "t", "the title came before it"
    assert client.asks(*A3, tools=TOOLS, session="s") == "s"


def test_what_goes_on_was_no_aside() -> None:
    client = Client()
    client.asks(*A1, tools=TOOLS, session="s")
    aside = client.asks(TITLE, user("a"), session="s")
    went_on = client.asks(TITLE, user("a"), reply("x"), user("b"), session="s")
    assert client.last is not None and not client.last.aside and went_on not in ("s", aside)
    assert client.asks(TITLE, user("a"), session="u") == "u", "its like are none, either"


def test_a_large_request_without_tools_is_no_aside() -> None:
    client = Client()
    client.asks(*A1, tools=TOOLS, session="s")
    assert client.asks(TITLE, user("a" * 10_000), session="s") == "s", "as one that has a history summarised"
    assert client.asks(*B1, tools=TOOLS, session="s") == "s", "what was summarised"


@pytest.mark.parametrize("body", [True, False])
def test_a_hint_counts_where_no_context_does(body: bool) -> None:
    """One id for all of an application, and one for each request: contexts tell them apart and together."""

    def named(hint: str) -> dict[str, Any]:
        return {"prompt_cache_key": hint} if body else {"headers": (("x-correlation-id", hint),)}

    client = Client()
    first = client.asks(*A1, **named("one"), stays=True)
    other = client.asks(*B1, **named("one"))
    assert first == "one" and other.startswith("one~")
    assert client.asks(*A2, **named("two")) == first
    assert client.asks(*B2, **named("three")) == other
    assert client.asks(SYSTEM, user("rewritten"), **named("four")) == "four"
    assert client.asks(SYSTEM, user("a summary"), **named("four")) == "four", "nothing speaks against the id"


def test_an_agents_id_names_none_of_its_conversations() -> None:
    client = Client()
    agent = (("gen_ai.agent.id", "asst_1"),)
    first, other = client.asks(*A1, headers=agent), client.asks(*B1, headers=agent)
    assert first.startswith("asst_1~") and other.startswith("asst_1~") and first != other
    assert client.asks(*A2, headers=agent) == first


SMALL = st.lists(st.sampled_from([user("a"), reply("x"), user("b"), 1, None]), max_size=3)
HOSTILE = st.fixed_dictionaries(
    {},
    optional={
        "messages": SMALL,
        "input": SMALL | st.just("text"),
        "previous_response_id": st.sampled_from(["r", "s", "r" * 10_000, 7, []]),
        "tools": st.just(TOOLS),
        "prompt_cache_key": st.sampled_from(["k", "l", "anonymous-k"]),
        "session_id": st.sampled_from(["s", "t"]),
    },
)


@given(st.lists(st.tuples(HOSTILE, st.sampled_from([(), *KEYS]), st.sampled_from(["", "r", "s"])), max_size=20))
def test_whatever_comes_is_named_and_what_is_remembered_is_bounded(steps: Any) -> None:
    continuity, open_turns = Continuity(most=4), []
    for body, headers, response in steps:
        identity = identify([(key.encode(), value.encode()) for key, value in headers], body)
        named, turn = continuity.name(identity, body, measure(body))
        assert named.owner == identity.owner and (named.anonymous or not named.program_id.startswith("anonymous-"))
        open_turns.append((turn, response))
        if response:
            open_turns.pop(0)[0].over(response * 5_000)
        assert len(continuity._contexts) <= 4 and set(continuity._found.values()) <= set(continuity._contexts)
        assert {each for own in continuity._of_owner.values() for each in own} == set(continuity._contexts)
        assert all(len(mark) <= 256 for _, mark in continuity._found if isinstance(mark, str))


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=30))
def test_conversations_that_go_on_are_never_mixed_once_the_id_is_known_to_name_many(steps: Any) -> None:
    """Whatever comes when: each turn that goes on is the program of the turn before it, or its id's holder."""
    client, lengths, names = Client(), dict.fromkeys(range(4), 1), dict[int, str]()
    for which, offers, stays in steps:
        talk = [SYSTEM, user(f"task {which}")]
        for number in range(lengths[which]):
            talk += [reply(f"{which}.{number}"), user(f"more {number}")]
        lengths[which] += 1
        names[which] = client.asks(*talk, session="s", stays=stays, **({"tools": TOOLS} if offers else {}))
        assert names[which] == "s" or names[which].startswith("s~")
    last = {which: client.asks(*_talk(which, lengths[which]), tools=TOOLS, session="s") for which in names}
    again = {which: client.asks(*_talk(which, lengths[which] + 1), tools=TOOLS, session="s") for which in names}
    once_more = {which: client.asks(*_talk(which, lengths[which] + 2), tools=TOOLS, session="s") for which in names}
    assert len(set(once_more.values())) == len(names), (last, again)


def _talk(which: int, length: int) -> list[Message]:
    talk = [SYSTEM, user(f"task {which}")]
    for number in range(length):
        talk += [reply(f"{which}.{number}"), user(f"more {number}")]
    return talk
