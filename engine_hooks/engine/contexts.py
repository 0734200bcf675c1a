"""The contexts that programs left in the engine's cache: what can be pinned, discarded or evicted by name."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

_MOST_CONTEXTS = 4096
_MOST_TOKENS = 64 << 20  # half a GiB of prompts at eight bytes a token, in each process of the engine
_MOST_PROGRAMS = 65_536
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Context:
    """A program's last context: what makes its key, anew each time, and how many tokens that has."""

    make_key: Callable[[], Any]
    tokens: int
    used_ns: int
    on_device: bool = True  # False: nothing of it was left there when it was last looked for

    @property
    def key(self) -> Any:
        return self.make_key()


class _ByProgram(OrderedDict[str, _Value]):
    """Of more than 65,536 programs whoever was set the longest ago is forgotten."""

    def __setitem__(self, program_id: str, value: _Value) -> None:
        super().__setitem__(program_id, value)
        self.move_to_end(program_id)
        if len(self) > _MOST_PROGRAMS:
            self.popitem(last=False)


class Contexts:
    """By program, least recently used first. The oldest are forgotten beyond 4096: the engine's own order holds.

    :param most_tokens: the oldest are forgotten beyond these too: each keeps the tokens that its key is made of.
    """

    def __init__(self, most_tokens: int = _MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._tokens = 0
        self._contexts: OrderedDict[str, Context] = OrderedDict()
        self._parked = _ByProgram[bool]()
        self._away = _ByProgram[bool]()
        self._labels = _ByProgram[str]()
        self._arrived = _ByProgram[int]()

    def remember(self, program_id: str, make_key: Callable[[], Any], tokens: int, now_ns: int) -> None:
        """A turn of the program ended and left its context in the cache."""
        self.forget(program_id)
        self._away.pop(program_id, None)
        self._contexts[program_id] = Context(make_key, tokens, now_ns)
        self._tokens += tokens
        while len(self._contexts) > _MOST_CONTEXTS or self._tokens > self._most_tokens:
            self.forget(next(iter(self._contexts)))

    def find(self, program_id: str) -> Context | None:
        return self._contexts.get(program_id)

    def forget(self, program_id: str) -> None:
        """Nothing of it is in the cache any more."""
        if (context := self._contexts.pop(program_id, None)) is not None:
            self._tokens -= context.tokens

    def note_gone(self, program_id: str) -> None:
        """The device holds nothing of it that could be evicted; host memory may."""
        if (context := self._contexts.get(program_id)) is not None:
            self._contexts[program_id] = replace(context, on_device=False)

    def forget_all(self) -> None:
        self._contexts.clear()
        self._tokens = 0

    def park(self, program_id: str) -> None:
        """The program ended or was paused, so that nobody waits for its context."""
        self._parked[program_id] = True

    def let_in(self, program_id: str) -> None:
        """It goes on, and is busy until another label comes."""
        self._parked.pop(program_id, None)
        self._labels.pop(program_id, None)

    def send_away(self, program_id: str, away: bool) -> None:
        """Its turns go to another engine from now on, so that nobody waits for its context; or come here."""
        self._away.pop(program_id, None)
        if away:
            self._away[program_id] = True

    def label(self, program_id: str, label: str) -> None:
        """Set the program's typed label: ``busy``, ``idle``, ``inactive``; an empty one takes it back."""
        self._labels.pop(program_id, None)
        if label:
            self._labels[program_id] = label

    def label_of(self, program_id: str) -> str:
        """As it was set; empty without one."""
        return self._labels.get(program_id, "")

    def note_turn(self, program_id: str, now_ns: int) -> None:
        self._arrived[program_id] = self._arrived.get(program_id, now_ns)

    def arrived_ns(self, program_id: str) -> int:
        """When the program's first turn came; 0 for one that is not known."""
        return self._arrived.get(program_id, 0)

    def is_parked(self, program_id: str) -> bool:
        """Whether nobody waits for its context here."""
        return program_id in self._parked or program_id in self._away

    def __iter__(self) -> Iterator[tuple[str, Context]]:
        return iter(self._contexts.items())
