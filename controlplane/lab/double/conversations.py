"""What of a prompt the engine has seen before: each program's last messages, as hashes and sizes."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.lab.double.chat_request import ChatMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt's sizes in tokens. ``prefix_group`` names its first message where that is a system message."""

    tokens: int
    reusable_tokens: int
    prefix_group: str
    prefix_tokens: int


class Conversations:
    """The last context of each program, the longest unused forgotten first.

    One context a program: of overlapping turns with different histories the last one counts.
    """

    def __init__(self, *, tokens_per_word: int, max_programs: int = 20_000) -> None:
        self._tokens_per_word = tokens_per_word
        self._max_programs = max_programs
        self._contexts: OrderedDict[str, list[tuple[int, int]]] = OrderedDict()  # (key, tokens) by message

    def words(self, tokens: int) -> int:
        """Words that stand for so many tokens, at least one."""
        return max(1, round(tokens / self._tokens_per_word))

    def take(self, program_id: str, messages: Sequence[ChatMessage]) -> Prompt:
        """Measure a prompt against the program's last context, whose place it takes."""
        previous = self._contexts.pop(program_id, [])
        context: list[tuple[int, int]] = []
        reusable_tokens = 0
        same = True
        for index, message in enumerate(messages):
            key = message.key
            same = same and index < len(previous) and previous[index][0] == key
            if same:
                tokens = previous[index][1]
                reusable_tokens += tokens
            else:
                tokens = len(message.text.split()) * self._tokens_per_word
            context.append((key, tokens))
        self._contexts[program_id] = context
        if len(self._contexts) > self._max_programs:
            self._contexts.popitem(last=False)
        has_prefix = messages[0].role in ("system", "developer")
        total = max(1, sum(tokens for _, tokens in context))
        return Prompt(
            tokens=total,
            reusable_tokens=min(reusable_tokens, total),
            prefix_group=f"{context[0][0]:x}" if has_prefix else "",
            prefix_tokens=context[0][1] if has_prefix else 0,
        )

    def add_reply(self, program_id: str, messages: int, reply: str) -> None:
        """The reply to a prompt of so many messages is part of the context, unless another prompt came since."""
        context = self._contexts.get(program_id)
        if context is not None and len(context) == messages:
            key = ChatMessage(role="assistant", text=reply).key
            context.append((key, len(reply.split()) * self._tokens_per_word))
