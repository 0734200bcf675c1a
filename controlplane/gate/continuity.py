"""Tell apart conversations of anonymous clients by how their prompts continue. Off by default.

A chat's next request begins with the messages of the one before, so a request that continues a known beginning
belongs to that program. This has limits. Two conversations that begin with the same words are one program until
either has continued. A conversation whose client rewrites its history (by a summary, or by dropping a message) is
a new program each time. Plain-text prompts, as in ``/v1/completions``, are not compared.
"""

import uuid
from collections import OrderedDict
from dataclasses import dataclass, replace

from controlplane.gate.identity import Body, Identity
from controlplane.gate.sizing import Prompt

SOURCE = "how its prompt goes on"
_MOST = 4096  # conversations; the one that was silent for longest is forgotten
_LISTS = ("messages", "input")  # chat completions and Anthropic's messages; responses


@dataclass(slots=True)
class _Conversation:
    program_id: str
    beginning: int  # the digest of its last prompt; 0: it has none yet
    turns: int = 0  # that are in the gate or the engine


class Continuity:
    """Remembers how conversations began. Use it in one event loop."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._by_beginning: OrderedDict[int, _Conversation] = OrderedDict()
        self._by_program: dict[str, _Conversation] = {}

    def name(self, identity: Identity, body: Body, prompt: Prompt) -> Identity:
        """Name an anonymous request's program. If its source is ``SOURCE``, call ``left`` when the turn is over."""
        if not any(isinstance(body.get(name), list) for name in _LISTS):
            return identity
        digests = prompt.chain[1:]  # each beginning of its messages, the shortest first
        if not digests:
            return identity
        known = next((found for digest in reversed(digests) if (found := self._by_beginning.get(digest))), None)
        if known is None or (known.turns and known.beginning == digests[-1]):  # the same words at the same time
            known = _Conversation(f"continued-{uuid.uuid4().hex}", 0)
            self._by_program[known.program_id] = known
        known.turns += 1
        self._go_on(known, digests[-1])
        return replace(identity, program_id=known.program_id, source=SOURCE, anonymous=False)

    def left(self, program_id: str) -> None:
        """Take note that one of the program's turns is over."""
        conversation = self._by_program.get(program_id)
        if conversation is None:
            return
        conversation.turns -= 1
        if not conversation.turns and self._by_beginning.get(conversation.beginning) is not conversation:
            del self._by_program[program_id]  # nobody can go on with it

    def _go_on(self, conversation: _Conversation, beginning: int) -> None:
        if self._by_beginning.get(conversation.beginning) is conversation:
            del self._by_beginning[conversation.beginning]
        conversation.beginning = beginning
        first = self._by_beginning.setdefault(beginning, conversation)
        if first is not conversation and not first.turns:
            self._by_beginning[beginning] = conversation
            del self._by_program[first.program_id]
        self._by_beginning.move_to_end(beginning)
        while len(self._by_beginning) > self._most:
            _, gone = self._by_beginning.popitem(last=False)
            if not gone.turns:
                del self._by_program[gone.program_id]
