"""The plugin of the smallest engine: its view, what its hooks call, and the hooks."""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

from engine import POOL_TOKENS, Request, Scheduler

from engine_hooks.engine.attached import Attached
from engine_hooks.engine.settings import Settings
from engine_hooks.engine.view import Lock, PoolTokens, View
from engine_hooks.guard import Guard


class EngineView(View):
    """Reads the engine, and locks contexts in its cache. Its pages are single tokens."""

    page_tokens, context_tokens = 1, POOL_TOKENS
    pool_tokens, chunk_tokens = POOL_TOKENS, POOL_TOKENS

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler: Scheduler = scheduler

    def pool(self) -> PoolTokens:
        cache, locked = self.scheduler.cache, self.scheduler.locked
        evictable = sum(tokens for context, tokens in cache.items() if context not in locked)
        return PoolTokens(POOL_TOKENS, max(0, self.scheduler.free), evictable)

    def waiting(self) -> Any:
        return self.scheduler.waiting

    def turns(self) -> tuple[int, int]:
        return len(self.scheduler.running), len(self.scheduler.waiting)

    def live_request_ids(self) -> set[str]:
        return {each.name for each in (*self.scheduler.running, *self.scheduler.waiting)}

    def lock(self, key: str) -> Lock | None:
        if key not in self.scheduler.cache:
            return None
        self.scheduler.locked.add(key)
        return Lock(key, None, self.scheduler.cache[key])

    def unlock(self, lock: Lock) -> None:
        self.scheduler.locked.discard(lock.node)

    def evict_tail(self, key: str, most_tokens: int) -> int:
        return 0 if key in self.scheduler.locked else self.scheduler.cache.pop(key, 0)  # it has no parts

    def id_of(self, request: Request) -> str:
        return request.name

    def labels_of(self, request: Request) -> Mapping[str, Any]:
        return request.labels

    def session_of(self, request: Request) -> object:
        return None

    def prompt_tokens(self, request: Request) -> int:
        return request.prompt

    def most_output_tokens(self, request: Request) -> int:
        return request.most

    def output_tokens(self, request: Request) -> int:
        return request.output

    def cached_tokens(self, request: Request) -> int:
        return request.cached

    def was_aborted(self, request: Request) -> bool:
        return request.output < request.most


class Plugin(Attached):
    """What the hooks call beside ``Moments``."""

    def step_begins(self, *args: Any) -> None:
        self._expire_and_obey()
        self.order(ordered := list(self._view.waiting()))
        self._view.waiting().clear()
        self._view.waiting().extend(ordered)
        self._probe.sample_if_due()

    def step_done(self) -> None:
        for request in self._view.scheduler.running:
            self.token_given(request)

    def before_finish(self, request: Request) -> None:
        self.turn_left(request, lambda: request.context, request.prompt + request.output, time.monotonic_ns())


def attach(scheduler: Scheduler, settings: Settings) -> Plugin:
    """Hook one scheduler. Call ``emitter.start()`` of what is returned, and events go to the node's bus."""
    guard = Guard()
    plugin = Plugin(settings, guard, EngineView(scheduler), role="engine")

    def hook(name: str, before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None) -> None:
        original = getattr(scheduler, name)

        @functools.wraps(original)
        def hooked(*args: Any) -> Any:
            if before is not None:
                guard.run(name, before, *args)
            result = original(*args)
            if after is not None:
                guard.run(name, after, *args)
            return result

        setattr(scheduler, name, hooked)

    hook("add_request", after=plugin.turn_queued)
    hook("step", before=plugin.step_begins, after=plugin.step_done)
    hook("start", after=plugin.turn_scheduled)
    hook("finish", before=plugin.before_finish, after=plugin.turn_ended)
    return plugin
