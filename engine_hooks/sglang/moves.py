"""Moves of contexts between the device and host memory: each is answered once it was done, or cannot be.

Demote and Discard wait for the copy to the host that holds a context, Prefetch for the loads that run already. They
wait from step to step: the scheduler is never held up.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from controlplane.core.model.commands import Demote, Discard, Prefetch
from controlplane.core.model.types import seconds
from engine_hooks.engine.contexts import Contexts
from engine_hooks.engine.pins import Pins
from engine_hooks.guard import log
from engine_hooks.sglang.host_tier import HostTier, Move
from engine_hooks.sglang.late_key import LateKey

_PATIENCE_NS = seconds(10)
_LOOK_AGAIN_NS = seconds(0.01)  # while an engine that has nothing else to do copies

TierCommand = Demote | Discard | Prefetch
OnAnswered = Callable[[TierCommand, str], None]  # command, problem


@dataclass(slots=True)
class Waiting:
    """A command that has not been answered."""

    command: TierCommand
    until_ns: int
    moved_tokens: int = 0
    fresh: bool = True  # tried in this step


class TierMoves:
    """The moves of one scheduler, one for each program at most. Lives in the scheduler's thread.

    :param answer: told of each command's end.
    """

    def __init__(
        self,
        host: HostTier,
        contexts: Contexts,
        pins: Pins,
        is_running: Callable[[str], bool],
        answer: OnAnswered,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._host = host
        self._contexts = contexts
        self._pins = pins
        self._is_running = is_running
        self._answer = answer
        self._now_ns = now_ns
        self._waiting: dict[str, Waiting] = {}
        self._prepared = False  # loads that this step has still to start

    def begin(self, command: TierCommand) -> None:
        """Try a command for the first time; ``step`` goes on with it, and must be called after the last of them.

        It takes the place of an earlier one for the same program that still waits.
        """
        program_id = command.program_id
        if not isinstance(command, Prefetch):
            self._pins.release(program_id)  # whatever becomes of the move
        self._end(program_id, "a later command took its place")
        self._waiting[program_id] = Waiting(command, self._now_ns() + _PATIENCE_NS)
        self._go_on(program_id)

    def step(self) -> None:
        """A scheduling step begins: what can be done now is done and answered."""
        for program_id, waiting in list(self._waiting.items()):
            if not waiting.fresh:
                self._go_on(program_id)
            waiting.fresh = False
        if self._prepared:
            self._prepared = False
            self._host.start_loading()

    def _go_on(self, program_id: str) -> None:
        waiting = self._waiting[program_id]
        try:
            problem = self._try(program_id, waiting)
        except Exception as error:
            log.exception("penstock: %s failed", type(waiting.command).__name__)
            problem = f"it failed in the engine: {type(error).__name__}"
        if problem is not None:
            self._end(program_id, problem)

    def _try(self, program_id: str, waiting: Waiting) -> str | None:
        """The move's problem, empty if it is done; None if it waits."""
        context = self._contexts.find(program_id)
        problem = self._host.problem
        if problem or context is None:
            return problem or "no turn of it ended here"
        if self._is_running(program_id):
            return "a turn of it runs and holds its context"
        if isinstance(waiting.command, Prefetch):
            move = self._load(program_id, context.key)
        else:
            move = self._take_off(program_id, waiting.command, context.key)
        waiting.moved_tokens += move.tokens
        if move.waits and self._now_ns() < waiting.until_ns:
            return None
        if move.waits:
            return "" if waiting.moved_tokens else "copies that the engine makes took too long"
        return "" if waiting.moved_tokens else move.problem

    def _load(self, program_id: str, key: Any) -> Move:
        if not self._prepared and self._host.loads:
            return Move(waits=True)
        problem = self._host.load_back(key)
        if not problem:
            self._prepared = True
            self._host.copies.forget(program_id)
        return Move(problem=problem)

    def _take_off(self, program_id: str, command: TierCommand, key: Any) -> Move:
        others = (cast(LateKey, context.make_key) for name, context in self._contexts if name != program_id)
        if isinstance(command, Demote):
            return self._host.demote(program_id, key, others)
        move = self._host.discard(key, others)
        if not move.waits:
            self._contexts.forget(program_id)
            self._host.copies.forget(program_id)
        return move

    def _end(self, program_id: str, problem: str) -> None:
        waiting = self._waiting.pop(program_id, None)
        if waiting is not None:
            self._answer(waiting.command, problem)

    def next_look_ns(self) -> int | None:
        """When an idle engine should go on with what waits; None if nothing does."""
        return self._now_ns() + _LOOK_AGAIN_NS if self._waiting else None

    def forget_all(self) -> None:
        self._prepared = False
        self._host.forget_all()
        for program_id in list(self._waiting):
            self._end(program_id, "the cache was emptied")
