"""Prompts of a stated length that grow as an agent's do: the history, our reply, the tool's result.

One word stands for ``tokens_per_word`` tokens. Programs share the system message, all one or each group's its own,
and nothing after it.
"""

import random
from collections.abc import Sequence

import msgspec

from controlplane.lab.workload.trace import Turn, reusable_tokens

COMMON_WORDS = (
    "able act add age ago air all any area arm art ask away bad bag ball bank base bed best big bit black "
    "blood blue board body book both box boy bring build call car card care case cause cell city class "
    "clear close cold come cost cup cut dark data day deal deep door down draw drive drop each east easy "
    "edge end face fact fall farm fast field fill film find fire fish floor flow food foot form free full "
    "game girl give glass gold good green ground group grow hair half hall hand hard head hear heart heat "
    "help high hill hold home hope hour house "
)
WORDS = COMMON_WORDS.split()
SYSTEM_SEED = "system"


class Conversation:
    """One program's messages, each already encoded as JSON."""

    def __init__(
        self,
        *,
        seed: str,
        shared_prefix_tokens: int,
        system: str = SYSTEM_SEED,
        family: str = "",
        family_tokens: int = 0,
        tokens_per_word: int = 1,
        tool_role: str = "tool",
    ) -> None:
        """``system`` seeds the words that all share, ``family`` those that sub-agents of one parent add to them."""
        self._random = random.Random(seed)
        self._system = system
        self._family = family
        self._family_tokens = family_tokens
        self._shared_prefix_tokens = shared_prefix_tokens
        self._tokens_per_word = tokens_per_word
        self._tool_role = tool_role
        self._messages: list[msgspec.Raw] = []
        self._last: Turn | None = None
        self._prompt_tokens = 0  # the messages as they were last sent
        self._context_tokens = 0  # those and the last reply

    def prompt(self, turn: Turn) -> Sequence[msgspec.Raw]:
        """The messages of the program's next turn, ``input_tokens`` long to the nearest word (at least two).

        A turn shorter than the last one is a compaction: a fresh history after the system message. One with no room
        for the whole reply leaves the reply out.
        """
        last, self._last = self._last, turn
        reusable = reusable_tokens(last, turn)
        if last is None or not reusable:
            self._begin(turn.input_tokens)
            self._prompt_tokens = self._context_tokens
            return self._messages
        if reusable == last.input_tokens:
            self._messages.pop()
            self._context_tokens = self._prompt_tokens
        growth_words = max(1, self._words_of(turn.input_tokens - self._context_tokens))
        self._messages.append(_message(self._tool_role, self._text(growth_words)))
        self._context_tokens += growth_words * self._tokens_per_word
        self._prompt_tokens = self._context_tokens
        return self._messages

    def reply(self, text: str, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        """Take the reply into the history.

        Where a word is meant to be one token, the engine's own counts (0: none given) correct ours, which know
        nothing of its tokenizer and its chat template.
        """
        self._messages.append(_message("assistant", text))
        if self._tokens_per_word == 1 and prompt_tokens:
            self._prompt_tokens = prompt_tokens
            self._context_tokens = prompt_tokens + output_tokens
        else:
            self._context_tokens += len(text.split()) * self._tokens_per_word

    def _begin(self, input_tokens: int) -> None:
        words = max(2, self._words_of(input_tokens))
        shared_words = min(self._words_of(self._shared_prefix_tokens), words - 1)
        self._messages = []
        family_words = min(self._words_of(self._family_tokens), words - 1 - shared_words)
        if shared_words or family_words:
            system = random.Random(self._system).choices(WORDS, k=shared_words)
            system += random.Random(self._family).choices(WORDS, k=family_words)
            self._messages.append(_message("system", " ".join(system)))
        self._messages.append(_message("user", self._text(words - shared_words - family_words)))
        self._context_tokens = words * self._tokens_per_word

    def _words_of(self, tokens: int) -> int:
        return round(tokens / self._tokens_per_word)

    def _text(self, words: int) -> str:
        return " ".join(self._random.choices(WORDS, k=words))


def _message(role: str, content: str) -> msgspec.Raw:
    body = {"role": role, "content": content}
    if role == "tool":
        body["tool_call_id"] = "call_0"
    return msgspec.Raw(msgspec.json.encode(body))
