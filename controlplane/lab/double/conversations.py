"""What of a prompt the engine has seen before: its latest contexts, as hashes of their messages.

As in an engine a prompt finds its beginning by its content, whoever sends it: a client without a name continues
what it was answered, and a request for a title leaves its program's conversation alone. Where this is simpler than
a radix tree: a context that is continued from its middle loses its old end, and two programs share no more than
their first message, which the engine model caches for all.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controlplane.lab.double.chat_request import ChatMessage
from controlplane.lab.sim.prefix_cache import context_key, owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt's sizes in tokens. ``prefix_group`` names its first message where that is a system message."""

    tokens: int
    reusable_tokens: int
    prefix_group: str
    prefix_tokens: int
    context: str  # the key under which the engine caches it


class Conversations:
    """The latest contexts, the longest unused forgotten first.

    ``hand_over(key, to)``: the engine's cache calls a context otherwise from now on; False where it cannot.
    """

    def __init__(
        self,
        *,
        tokens_per_word: int,
        most: int = 20_000,
        hand_over: Callable[[str, str], bool] = lambda key, to: True,
    ) -> None:
        self._tokens_per_word = tokens_per_word
        self._most = most
        self._hand_over = hand_over
        self._serials = itertools.count(1)
        self._contexts: OrderedDict[str, list[int]] = OrderedDict()  # by key: a digest of each of its beginnings
        # The latest context that begins so, of a program and ("") of all.
        self._by_beginning: dict[tuple[str, int], str] = {}

    def words(self, tokens: int) -> int:
        """Words that stand for so many tokens, at least one."""
        return max(1, round(tokens / self._tokens_per_word))

    def take(self, program_id: str, messages: Sequence[ChatMessage]) -> Prompt:
        """Measure a prompt; the known context that it continues is its program's from now on."""
        has_prefix = messages[0].role in ("system", "developer")
        beginnings = list(itertools.accumulate((each.key for each in messages), lambda *two: hash(two), initial=0))[
            1:
        ]
        sizes = list(itertools.accumulate(len(each.text.split()) * self._tokens_per_word for each in messages))
        key, shared = self._continued(program_id, beginnings, least=1 + has_prefix)
        if not key:
            key = context_key(program_id, next(self._serials))
        self._set(key, beginnings)
        tokens = max(1, sizes[-1])
        return Prompt(
            tokens=tokens,
            reusable_tokens=min(sizes[shared - 1], tokens) if shared else 0,
            prefix_group=f"{messages[0].key:x}" if has_prefix else "",
            prefix_tokens=sizes[0] if has_prefix else 0,
            context=key,
        )

    def add_reply(self, key: str, messages: int, reply: str) -> None:
        """The reply to a prompt of so many messages is part of the context, unless another prompt came since."""
        context = self._contexts.get(key)
        if context is not None and len(context) == messages:
            self._set(key, [*context, hash((context[-1], ChatMessage(role="assistant", text=reply).key))])

    def _continued(self, program_id: str, beginnings: Sequence[int], least: int) -> tuple[str, int]:
        """The context that the prompt begins with, under its new key, and how many of its messages they share."""
        for shared in range(len(beginnings), least - 1, -1):
            beginning = beginnings[shared - 1]
            if own := self._by_beginning.get((program_id, beginning)):
                return own, shared
            key = self._by_beginning.get(("", beginning), "")
            if key and shared == len(self._contexts[key]):
                to = context_key(program_id, next(self._serials))
                if self._hand_over(key, to):
                    self._forget(key)
                    return to, shared
        return "", 0

    def _set(self, key: str, beginnings: list[int]) -> None:
        self._forget(key)
        self._contexts[key] = beginnings
        for whose in (owner(key), ""):
            self._by_beginning.update(((whose, beginning), key) for beginning in beginnings)
        while len(self._contexts) > self._most:
            self._forget(next(iter(self._contexts)))

    def _forget(self, key: str) -> None:
        for beginning in self._contexts.pop(key, ()):
            for name in ((owner(key), beginning), ("", beginning)):
                if self._by_beginning.get(name) == key:
                    del self._by_beginning[name]
