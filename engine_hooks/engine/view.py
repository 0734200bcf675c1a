"""What the plugin reads and does inside an engine's scheduler: each engine's own view fills this in.

Everything here runs in the scheduler's thread. Tokens are the measure, whatever the engine's pages or blocks hold.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.core.model.causes import Change
from controlplane.core.model.events import DECODE
from controlplane.core.model.text import sanitize
from controlplane.gate.request_ids import change_in
from engine_hooks.engine.labels import CHANGE, PARENT, PROGRAM, TRACE, TURN, carried_labels

_UNNAMED = "request-"


@dataclass(frozen=True, slots=True)
class PoolTokens:
    """The KV pool in tokens: reads of counters, O(1)."""

    total: int
    free: int
    evictable: int


@dataclass(frozen=True, slots=True)
class Lock:
    """A context that the engine must keep, and what undoes that."""

    node: Any
    receipt: Any
    tokens: int


class View(ABC):
    """One scheduler. A *key* finds a context in the engine's cache, a *request* is the engine's own."""

    scheduler: Any
    page_tokens: int  # of a context, that a page or block of the pool stands for
    context_tokens: int  # the longest context that the model takes; 0: it is not known
    disaggregation = ""  # ``PREFILL`` or ``DECODE``; empty for an engine that does both

    @property
    def decodes(self) -> bool:
        """Whether it decodes what prefill engines hand over, and nothing else."""
        return self.disaggregation == DECODE

    # Sizes and queues

    @abstractmethod
    def pool(self) -> PoolTokens: ...

    @property
    @abstractmethod
    def pool_tokens(self) -> int:
        """The size of the pool."""

    @property
    @abstractmethod
    def chunk_tokens(self) -> int:
        """Tokens of a prefill step at most."""

    @abstractmethod
    def waiting(self) -> Any:
        """The requests of the engine's queue."""

    @abstractmethod
    def turns(self) -> tuple[int, int]:
        """How many requests run, and how many wait."""

    @abstractmethod
    def live_request_ids(self) -> set[str]:
        """The ids of every request that the scheduler holds."""

    def look_again(self) -> None:  # noqa: B027  nothing is a default
        """Requests that found no room are to be asked again at the next step, where the engine does not anyway."""

    def blocks(self, tokens: int) -> int:
        """Tokens in whole pages."""
        return -(-tokens // self.page_tokens)

    def missing(self, needed: Any) -> int:
        """How many of the tokens that are needed can be had neither free nor evictable; none if 0 or less."""
        pool = self.pool()
        return int(needed) - pool.free - pool.evictable

    # Contexts

    @abstractmethod
    def lock(self, key: Any) -> Lock | None:
        """Take what is cached of ``key`` out of the evictable set; None if nothing of it is."""

    @abstractmethod
    def unlock(self, lock: Lock) -> None:
        """Give it back."""

    def locked_tokens(self, lock: Lock) -> int:
        """What it takes of the pool, as the pool is counted now."""
        return lock.tokens

    @abstractmethod
    def evict_tail(self, key: Any, most_tokens: int) -> int:
        """Free, from the end, what nobody else shares or locks, until so many tokens are freed; how many were."""

    # A request

    @abstractmethod
    def id_of(self, request: Any) -> str:
        """The engine's own id."""

    @abstractmethod
    def labels_of(self, request: Any) -> Mapping[str, Any]:
        """What the plugin's HTTP side wrote down for us; nothing where it has no part in the request."""

    @abstractmethod
    def session_of(self, request: Any) -> object:
        """What the engine itself was told whose it is; nothing: it was not."""

    def program_of(self, request: Any) -> str:
        """The request's program, whichever carrier holds it; a request without one is its own."""
        return named(self._labels(request).get(PROGRAM) or self.session_of(request), self.id_of(request))

    def turn_of(self, request: Any) -> str:
        """The gate's id of this turn, else the engine's."""
        return str(self._labels(request).get(TURN) or self.id_of(request))

    def parent_of(self, request: Any) -> str:
        """The program on whose slot it rides, as its gate says; empty for none."""
        return str(self._labels(request).get(PARENT) or "")

    def trace_of(self, request: Any) -> str:
        """The client's span, as its gate says; empty for none."""
        return str(self._labels(request).get(TRACE) or "")

    def change_of(self, request: Any) -> Change:
        """What its client changed of its prompt, as its gate says."""
        return change_in(str(self._labels(request).get(CHANGE) or ""))

    def _labels(self, request: Any) -> Mapping[str, Any]:
        """The plugin's own, else those of a gate outside."""
        return self.labels_of(request) or carried_labels(self.id_of(request))

    def handoff_of(self, request: Any) -> str:
        """By what the engines that prefill and decode it both know it; empty where one does both."""
        return ""

    @abstractmethod
    def prompt_tokens(self, request: Any) -> int: ...

    @abstractmethod
    def most_output_tokens(self, request: Any) -> int:
        """The client's own limit; 0 without one."""

    @abstractmethod
    def output_tokens(self, request: Any) -> int:
        """Those that it has by now."""

    @abstractmethod
    def cached_tokens(self, request: Any) -> int:
        """The tokens that were found in the cache when it was scheduled, first or after it was thrown out."""

    def loaded_tokens(self, request: Any) -> int:
        """How many of those were loaded from memory below the device, where the engine tells them apart."""
        return 0

    @abstractmethod
    def was_aborted(self, request: Any) -> bool:
        """Whether it ended without an answer."""


def named(name: object, request_id: str) -> str:
    """The program of a request, by what a client or the gate calls it; nothing: it is a program of its own."""
    if text := str(name or "").strip():
        return sanitize(text)
    unnamed = f"{_UNNAMED}{request_id}"
    return unnamed if sanitize(unnamed) == unnamed else f"{_UNNAMED}{sanitize(unnamed)}"


def is_unnamed(program_id: str) -> bool:
    """Whether ``named`` made the name up."""
    return program_id.startswith(_UNNAMED)
