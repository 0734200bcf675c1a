"""Pins: programs whose KV the engine must keep, until a deadline that the engine itself watches.

**Paper**: MARS §4.3: pinned contexts are reclaimed before any running victim. Which go first, and whether for a
call that only waits, the memory policy says. A dead daemon leaves nothing pinned: every pin ends by itself.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import dataclass
from typing import Any

from controlplane.core.model.events import Pin
from controlplane.core.policies.protocols import MemoryPolicy, Pinned
from engine_hooks.engine.contexts import Context, Contexts
from engine_hooks.engine.view import Lock, View


@dataclass(frozen=True, slots=True)
class HeldPin:
    """One pin. ``asked``: the daemon did; else it was held back from eviction until the daemon has spoken."""

    lock: Lock
    until_ns: int
    context: Context | None
    asked: bool = True


class Pins:
    """The pins of one scheduler. ``budget_ratio`` tells which share of the pool pins may take together now."""

    def __init__(
        self,
        view: View,
        contexts: Contexts,
        budget_ratio: Callable[[], float],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._view = view
        self._contexts = contexts
        self._budget_ratio = budget_ratio
        self._now_ns = now_ns
        self._held: OrderedDict[str, HeldPin] = OrderedDict()
        self._reclaimed: list[str] = []

    def retain(self, program_id: str, ttl_ns: int) -> str:
        """Pin the program's last context; the reason if that cannot be done."""
        context = self._contexts.find(program_id)
        if context is None:
            return "no turn of it ended here"
        held = self._held.pop(program_id, None)
        if held is not None and held.context is context:
            lock: Lock | None = held.lock
        else:
            self._unlock(held)
            lock = self._view.lock(context.key)
        if lock is None:
            return "nothing of it is cached any more"
        if not self._affords(lock) and not self._afforded_instead_of_holds(lock):
            self._view.unlock(lock)
            return f"the pin budget ({self._budget_ratio():g} of the pool) is spent"
        self._held[program_id] = HeldPin(lock, self._now_ns() + ttl_ns, context)
        return ""

    def hold(self, program_id: str, lock: Lock, ttl_ns: int) -> None:
        """Keep the context that a turn has just left, under ``lock``, until the daemon has spoken or it is over.

        Beyond the budget it is given back at once.
        """
        self.release(program_id)
        if self._affords(lock):
            context = self._contexts.find(program_id)
            self._held[program_id] = HeldPin(lock, self._now_ns() + ttl_ns, context, asked=False)
        else:
            self._view.unlock(lock)

    def _afforded_instead_of_holds(self, lock: Lock) -> bool:
        """Whether there is budget once contexts are let go that nobody has asked for; those are, if there is."""
        if self.retained_tokens + self._view.locked_tokens(lock) > self._budget_tokens:
            return False
        for name in [name for name, held in self._held.items() if not held.asked]:
            self.release(name)
            if self._affords(lock):
                break
        return True

    @property
    def _budget_tokens(self) -> float:
        return self._budget_ratio() * self._view.pool_tokens

    def _affords(self, lock: Lock) -> bool:
        return self.tokens + self._view.locked_tokens(lock) <= self._budget_tokens

    def release(self, program_id: str) -> bool:
        """Unpin; False if it was not pinned."""
        held = self._held.pop(program_id, None)
        self._unlock(held)
        return held is not None

    def _unlock(self, held: HeldPin | None) -> None:
        if held is not None:
            self._view.unlock(held.lock)

    def discard(self, program_id: str) -> str:
        """Unpin and free the program's own part of the cache now; the reason if that cannot be done."""
        self.release(program_id)
        context = self._contexts.find(program_id)
        if context is None:
            return "no turn of it ended here"
        self._contexts.forget(program_id)
        self._view.evict_tail(context.key, self._view.pool_tokens)
        return ""

    def expire(self, outlasting: Callable[[], Container[str]] = tuple) -> bool:
        """Release what is past its deadline, but for programs in ``outlasting()``. True if any was released."""
        if not self._held:
            return False
        now_ns = self._now_ns()
        due = [name for name, held in self._held.items() if held.until_ns <= now_ns]
        exempt = outlasting() if due else ()
        due = [name for name in due if name not in exempt]
        for name in due:
            self.release(name)
        return bool(due)

    def reclaim(self, needed: Any, policy: MemoryPolicy, *, stuck: bool) -> bool:
        """Unpin whom the policy gives up, until nothing is ``missing`` of ``needed``. True if any was unpinned.

        What is unpinned may be shared and so free less than it holds: the policy is asked until it is enough.
        """
        reclaimed = self._reclaim_unasked(needed)
        while self._held and (missing := self._view.missing(needed)) > 0:
            names = policy.unpin(self._pinned(), self._view.blocks(missing), stuck)
            if not names:
                break
            for name in names:
                if (held := self._held.get(name)) is not None and held.asked:
                    self._reclaimed.append(name)
                self.release(name)
                reclaimed = True
                if self._view.missing(needed) <= 0:
                    break
        return reclaimed

    def take_reclaimed(self) -> list[str]:
        """Whose pins, which the daemon had asked for, were given up since this was asked last."""
        reclaimed, self._reclaimed = self._reclaimed, []
        return reclaimed

    def _reclaim_unasked(self, needed: Any) -> bool:
        """Nobody asked for these: they go first."""
        reclaimed = False
        for name in [name for name, held in self._held.items() if not held.asked]:
            if self._view.missing(needed) <= 0:
                break
            reclaimed = self.release(name)
        return reclaimed

    def _pinned(self) -> list[Pinned]:
        return [
            Pinned(
                program_id=name,
                blocks=self._view.blocks(self._view.locked_tokens(held.lock)),
                until_ns=held.until_ns,
                program_arrived_at_ns=self._contexts.arrived_ns(name),
            )
            for name, held in self._held.items()
        ]

    def forget_all(self) -> None:
        """The cache was emptied: handles into it must never be used again."""
        self._held.clear()
        self._contexts.forget_all()

    @property
    def programs(self) -> Collection[str]:
        return self._held.keys()

    def next_deadline_ns(self) -> int | None:
        """When the next pin ends; None without one. Any thread may ask."""
        return min((held.until_ns for held in list(self._held.values())), default=None)

    @property
    def tokens(self) -> int:
        """What is pinned or held back. A shared prefix counts once for each program that pins it."""
        return sum(self._view.locked_tokens(held.lock) for held in self._held.values())

    @property
    def held_tokens(self) -> int:
        """What of it nobody has asked for yet."""
        return sum(self._view.locked_tokens(held.lock) for held in self._held.values() if not held.asked)

    @property
    def retained_tokens(self) -> int:
        """What of it the daemon has asked for."""
        return self.tokens - self.held_tokens

    def listed(self) -> Iterator[Pin]:
        """For a ``PublisherState``, with the time that is left."""
        now_ns = self._now_ns()
        for program_id, held in list(self._held.items()):
            if held.asked:
                yield Pin(program_id=program_id, ttl_ns=max(0, held.until_ns - now_ns))
