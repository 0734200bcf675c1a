"""Conversations of clients that name nobody, by how their prompts go on."""

from typing import Any

from controlplane.gate.continuity import SOURCE, Continuity
from controlplane.gate.identity import Identity, identify
from controlplane.gate.sizing import measure

SYSTEM = {"role": "system", "content": "You work."}


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


class Client:
    """Sends requests; each is over at once unless it ``stays``."""

    def __init__(self, most: int = 100) -> None:
        self.continuity = Continuity(most)

    def asks(self, *messages: dict[str, Any], stays: bool = False, name: str = "messages", **more: Any) -> str:
        body = {name: list(messages), **more}
        named = self.continuity.name(identify([], body), body, measure(body))
        assert (named.source, named.anonymous) == (SOURCE, False)
        if not stays:
            self.continuity.left(named.program_id)
        return named.program_id


def test_who_goes_on_is_the_same_program() -> None:
    client = Client()
    first = client.asks(SYSTEM, user("a"))
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
    client.continuity.left(twin)
    client.continuity.left(first)
    assert client.asks(SYSTEM, user("a"), reply("x"), user("more")) == first
    assert client.asks(SYSTEM, user("a")) not in (first, twin), "the first has gone on"
    assert twin not in client.continuity._by_program


def test_a_longer_prompt_beside_an_open_turn_is_its_program_s() -> None:
    client = Client()
    first = client.asks(user("a"), stays=True)
    assert client.asks(user("a"), reply("x"), user("b"), stays=True) == first


def test_a_rewritten_history_is_another_program() -> None:
    client = Client()
    first = client.asks(SYSTEM, user("a"))
    assert client.asks(SYSTEM, user("a summary"), user("more")) != first


def test_marks_for_a_cache_that_move_change_nothing() -> None:
    client = Client()
    mark = {"cache_control": {"type": "ephemeral"}}
    first = client.asks(user([{"type": "text", "text": "a", **mark}]), system="s")  # type: ignore[arg-type]
    blocks = [{"type": "text", "text": "a"}]
    assert client.asks(user(blocks), reply("x"), user("b", **mark), system="s") == first  # type: ignore[arg-type]
    assert client.asks(user(blocks), reply("x"), user("b"), user("c"), system="t") != first  # type: ignore[arg-type]


def test_responses_name_their_messages_otherwise() -> None:
    client = Client()
    first = client.asks(user("a"), name="input")
    assert client.asks(user("a"), reply("x"), user("b"), name="input") == first


def test_what_is_no_chat_stays_anonymous() -> None:
    for body in ({"prompt": "text"}, {"messages": []}, {"messages": "text"}, {"input": "text"}, {}):
        identity = identify([], body)
        assert Continuity().name(identity, body, measure(body)) is identity


def test_so_many_conversations_are_remembered_and_no_more() -> None:
    client = Client(most=2)
    first, second, third = (client.asks(user(text)) for text in "abc")
    assert client.asks(user("b"), reply("x"), user("more")) == second
    assert client.asks(user("c"), reply("x"), user("more")) == third
    assert client.asks(user("a"), reply("x"), user("more")) != first
    assert len(client.continuity._by_program) == len(client.continuity._by_beginning) == 2


def test_an_open_conversation_that_is_forgotten_ends_quietly() -> None:
    client = Client(most=1)
    first = client.asks(user("a"), stays=True)
    client.asks(user("b"))
    client.continuity.left(first)
    client.continuity.left(first)
    assert set(client.continuity._by_program) == {client.asks(user("b"))}


def test_names_that_are_given_are_kept() -> None:
    """The middleware asks for anonymous requests only; the rest of the identity stays."""
    body = {"messages": [user("a")], "tenant": "team"}
    named = Continuity().name(identify([], body), body, measure(body))
    assert named.tenant == "team"
    assert isinstance(named, Identity)
