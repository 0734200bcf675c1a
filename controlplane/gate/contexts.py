"""What of a prompt its program's earlier prompts had already: only what is new has to be estimated.

A program may have several contexts under one id: its conversation, a request for a title, a fork. So a few of its
prompts are remembered, and a new one continues whichever it shares most with. One that was compacted or rewound
shares less than all of it; one that shares nothing is measured as a whole.
"""

import asyncio
from array import array
from collections import OrderedDict
from dataclasses import dataclass, replace

from controlplane.core.estimators.prompt_size import MEDIA, PromptSize
from controlplane.core.model.causes import Cause, Change
from controlplane.core.model.text import sanitize
from controlplane.gate.clients import client_of
from controlplane.gate.diagnostics import Compared
from controlplane.gate.identity import Body, Headers, Identity
from controlplane.gate.outlines import MOST_PIECES, Outline, difference
from controlplane.gate.sizing import Media, Prompt, measure

_LARGE_BODY = 1 << 15  # bytes
_MOST_CONTEXTS = 4  # of a program
_MOST_PARTS = 1_000_000  # of all prompts together, in 16 bytes each: the program unused for longest is forgotten
_PARTS_A_CONTEXT = 32  # what one takes beside its parts, in such parts
_MOST_OF_ONE = 16_384  # parts of a prompt that is remembered: what is longer is no conversation
_STORED_RATIO = (
    0.999  # of the last prompt of who continues what the server has; from part of one nothing is learned
)
_TOKENS_PER_BYTE = 0.25  # only to weigh text against images


async def measured(body: Body, body_bytes: int) -> Prompt:
    """Measure a prompt; a large one beside the loop, which others have every few milliseconds meanwhile."""
    return await asyncio.to_thread(measure, body) if body_bytes > _LARGE_BODY else measure(body)


@dataclass(frozen=True, slots=True)
class _Context:
    turn_id: str
    chain: "array[int]"
    text: "array[int]"
    media: tuple[Media, ...]  # by part; empty where there is none
    outline: Outline
    reply_id: str = ""  # as its client knows it
    tokens: int = 0  # of the prompt, as the engine counted them; 0: it did not say

    @property
    def size(self) -> int:
        """What it takes of ``most_parts``."""
        return len(self.chain) + _PARTS_A_CONTEXT


class Contexts:
    """The latest prompts of each program. Use it in one event loop."""

    def __init__(self, most_parts: int = _MOST_PARTS) -> None:
        self._most_parts = most_parts
        self._by_program: OrderedDict[str, list[_Context]] = OrderedDict()
        self._parts = 0

    def size(self, identity: Identity, prompt: Prompt) -> PromptSize:
        """Measure a prompt against what is remembered of its program."""
        known, shared, ratio = None, 0, 0.0
        for context in self._by_program.get(identity.program_id, ()):
            parts = _shared_parts(context, prompt)
            if parts > shared and (of_it := _ratio(context, parts)):
                known, shared, ratio = context, parts, of_it
        if prompt.is_stored and (contexts := self._by_program.get(identity.program_id)):
            known, shared, ratio = contexts[-1], 0, _STORED_RATIO  # all of it, and the answer
        whole = prompt.media[-1] if prompt.media else (0, 0, 0, 0)
        before = prompt.media[shared - 1] if shared else (0, 0, 0, 0)
        return PromptSize(
            prompt_bytes=prompt.text_bytes,
            prompt_tokens=prompt.tokens,
            model=prompt.model,
            agent=identity.agent,
            continues=known.turn_id if known is not None else "",
            shared_ratio=ratio,
            new_bytes=prompt.text_bytes - (prompt.text[shared - 1] if shared else 0),
            **{f"{kind}_tokens": more - less for kind, more, less in zip(MEDIA, whole, before, strict=True)},
        )

    def change(self, program_id: str, prompt: Prompt, headers: Headers) -> Change:
        """What its client changed since the program's prompt that it shares most with, or else the last one.

        Of what the server has stored, or what came as token ids, nothing can be said.
        """
        client, contexts = client_of(headers), self._by_program.get(program_id)
        if not contexts or prompt.is_stored or prompt.tokens:
            return Change(client=client)
        known = max(reversed(contexts), key=lambda each: _shared_parts(each, prompt))
        return replace(difference(known.outline, prompt.outline), client=client, continues=known.turn_id)

    def compared(self, program_id: str, prompt: Prompt, reply_id: str) -> Compared | None:
        """The prompt beside that which the program had this reply to; None where that is not remembered."""
        reply_id = sanitize(reply_id)
        for known in self._by_program.get(program_id, ()):
            if known.reply_id == reply_id:
                found = difference(known.outline, prompt.outline)
                tokens = known.tokens or round(sum(known.outline.lengths) * _TOKENS_PER_BYTE)
                cause = Cause(found.change) or (Cause.NONE if found.kept_ratio else Cause.EDITED)
                return Compared(cause=cause, kept_ratio=found.kept_ratio, tokens=tokens)
        return None

    def remember(
        self, program_id: str, turn_id: str, prompt: Prompt, *, reply_id: str = "", tokens: int = 0
    ) -> None:
        """An engine took the program's turn with that prompt of ``tokens``; ``reply_id``: as the reply says."""
        if len(prompt.chain) > _MOST_OF_ONE:
            return
        contexts = self._by_program.setdefault(program_id, [])
        self._by_program.move_to_end(program_id)
        for index, each in enumerate(contexts):
            if _shared_parts(each, prompt) == len(each.chain):  # it goes on: nothing else can continue that one
                self._parts -= contexts.pop(index).size
                break
        has_media = any(prompt.media[-1]) if prompt.media else False
        media = tuple(prompt.media) if has_media else ()
        outline, reply_id = prompt.outline.bounded(MOST_PIECES), sanitize(reply_id)
        contexts.append(
            _Context(turn_id, array("q", prompt.chain), array("q", prompt.text), media, outline, reply_id, tokens)
        )
        self._parts += contexts[-1].size
        if len(contexts) > _MOST_CONTEXTS:
            self._parts -= contexts.pop(0).size
        while sum(len(each.outline.kinds) for each in contexts) > MOST_PIECES:
            longest = max(range(len(contexts)), key=lambda at: len(contexts[at].outline.kinds))
            outline = contexts[longest].outline
            contexts[longest] = replace(contexts[longest], outline=outline.folded(outline.level + 1))
        while self._parts > self._most_parts:
            _, gone = self._by_program.popitem(last=False)
            self._parts -= sum(each.size for each in gone)


def _shared_parts(context: _Context, prompt: Prompt) -> int:
    """How many parts both begin with: equal chains up to one part are equal before it, too."""
    low, high = 0, min(len(context.chain), len(prompt.chain))
    while low < high:
        middle = (low + high + 1) // 2
        if context.chain[middle - 1] == prompt.chain[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def _ratio(context: _Context, shared: int) -> float:
    if shared == len(context.chain):
        return 1.0
    whole = _weight(context, len(context.chain))
    return _weight(context, shared) / whole if whole else 0.0


def _weight(context: _Context, parts: int) -> float:
    media = sum(context.media[parts - 1]) if context.media else 0
    return context.text[parts - 1] * _TOKENS_PER_BYTE + media
