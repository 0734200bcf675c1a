"""What every source of turns tells of them, and what its cache does: one story, which each of them passes.

These are the engine double (whose engine is the simulator's), the real SGLang and vLLM, and a fleet that speaks for
an engine without a plugin. So no test on the double hides what an engine does not tell.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from controlplane.core.model.events import Event, FirstToken, TurnEnded, TurnSubmitted

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A turn as its client sees it."""

    text: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int


Ask = Callable[[str, Messages], Awaitable[Answer]]
"""Of (program, messages): an empty name sends none."""


async def tell_story(ask: Ask, words: Callable[[int, int], str]) -> list[Answer]:
    """A conversation, a request for a title by its id, its next turn; then one by a client without a name.

    ``words(seed, count)`` makes a text of so many words. Raises ``AssertionError`` for a cache that is no engine's.
    """
    talk: Messages = [{"role": "system", "content": words(1, 60)}, {"role": "user", "content": words(2, 200)}]
    first = await ask("contract", talk)
    title = await ask(
        "contract", [{"role": "system", "content": words(3, 20)}, {"role": "user", "content": "a title"}]
    )
    talk += [{"role": "assistant", "content": first.text}, {"role": "user", "content": words(4, 50)}]
    second = await ask("contract", talk)
    assert second.cached_tokens > 0.6 * first.prompt_tokens, "a request for a title leaves the conversation alone"
    other: Messages = [{"role": "user", "content": words(5, 200)}]
    nameless = await ask("", other)
    other += [{"role": "assistant", "content": nameless.text}, {"role": "user", "content": words(6, 50)}]
    again = await ask("", other)
    assert again.cached_tokens > 0.6 * nameless.prompt_tokens, "a cache goes by content, not by names"
    return [first, title, second, nameless, again]


def check_events(events: Iterable[Event], answers: Iterable[Answer], *, counts_at_first: bool = True) -> None:
    """Each turn is told in full, with the tokens that its client was told, and with nothing that no engine knows.

    ``counts_at_first``: the prompt's tokens are known when the turn is submitted, as by a plugin.
    """
    events = list(events)
    ended = [event for event in events if isinstance(event, TurnEnded)]
    for end in ended:
        (submitted,) = [e for e in events if isinstance(e, TurnSubmitted) and e.turn_id == end.turn_id]
        firsts = [e for e in events if isinstance(e, FirstToken) and e.turn_id == end.turn_id]
        assert submitted.prompt_bytes == 0, "an engine has tokens, and has seen no bytes"
        assert submitted.prompt_tokens == (end.prompt_tokens if counts_at_first else 0)
        assert {submitted.program_id, end.program_id, *(e.program_id for e in firsts)} == {end.program_id}
        assert firsts and firsts[-1].cached_tokens == end.cached_tokens
        assert end.ok and not end.estimated
    told = [(e.prompt_tokens, e.output_tokens, e.cached_tokens) for e in ended]
    assert sorted(told) == sorted((a.prompt_tokens, a.output_tokens, a.cached_tokens) for a in answers)
