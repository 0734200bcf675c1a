"""What the plugin keeps of one whole vLLM scheduler, and what its hooks do there."""

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from controlplane.core.model import commands as cmd
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, seconds
from engine_hooks.engine.attached import Attached as Base
from engine_hooks.engine.contexts import Contexts
from engine_hooks.engine.settings import Settings
from engine_hooks.engine.view import Lock
from engine_hooks.guard import Guard
from engine_hooks.vllm.engine_view import EngineView

_HOLD_NS = seconds(1)  # far more than the daemon takes to say what becomes of a context
_RETAINS_NS = seconds(60)  # a daemon that retained nothing for so long does not retain
_MOST_AT_ONCE, _PARTS = 64, 256  # blocks, and a share of the pool: evicted together at the least
_LONGEST_SLEEP_S = 1.0
_SHORTEST_SLEEP_S = 0.001
_LEAST_BETWEEN_S = 0.05  # two looks, where a deadline is over and its pin holds
_NO_TIER = "vLLM moves contexts below the device by itself: no call of it moves one"


class Attached(Base):
    """``role``: on the bus. ``no_pins``: why contexts can be neither pinned nor freed here; empty if they can."""

    _view: EngineView

    def __init__(self, scheduler: Any, settings: Settings, guard: Guard, role: str, no_pins: str) -> None:
        view = EngineView(scheduler, lambda: (context.key for _, context in self._contexts))
        self._no_pins = no_pins
        self._retained_ns: int | None = None  # when the daemon last retained anything
        self.is_idle = False  # read by the clock's thread
        self._core: Any = None
        self._new_pin = threading.Event()  # its deadline may come before the one that the clock sleeps to
        self._nothing_to_evict = False  # in this step, until a pin is given up
        self._preempted: set[str] = set()  # ids of preempted requests that were not scheduled since
        self._prompts: dict[
            str, Lock
        ] = {}  # by request id: for the next turn, what the request itself leaves behind
        super().__init__(settings, guard, view, role)

    @property
    def groups(self) -> list[str]:
        """Of each KV cache group in words, what of a context can be pinned there."""
        return self._view.groups.told()

    def _make_contexts(self) -> Contexts:
        """What the pool has no room for is not cached: twice that is remembered, for what is shared."""
        return Contexts(most_tokens=2 * self._view.pool_tokens)

    # Hooks

    def request_queued(self, request: Any) -> None:
        """A request that ends a streamed input is not kept."""
        if request.request_id in self._view.scheduler.requests:
            self.turn_queued(request)

    def step_begins(self, *args: Any) -> None:
        self.is_idle = self._nothing_to_evict = False
        self._expire_and_obey()
        self._order_queue()
        self._order_victims()
        self._probe.sample_if_due()

    def idle(self) -> None:
        """The engine has nothing to do, or is paused: deadlines and commands have no step to wait for."""
        self.is_idle = True
        self._expire_and_obey()
        self._probe.sample_if_due()

    def _order_queue(self) -> None:
        """The coordinator's order, where the engine's own is first come, first served."""
        waiting = self._view.scheduler.waiting
        if len(waiting) < 2 or not isinstance(waiting, deque):
            return
        before = list(waiting)
        ordered = list(before)
        self.order(ordered)
        if any(one is not other for one, other in zip(before, ordered, strict=True)):
            waiting.clear()
            waiting.extend(ordered)

    def _order_victims(self) -> None:
        """vLLM preempts the last of those that run, where a step finds no room: one that may not, by what is left.

        Their order is that of the step's tokens, too, which is left alone while there is room.
        """
        if self._view.may_run_out():
            self.victims_last(self._view.scheduler.running, lambda request: request)

    def step_planned(self, output: Any) -> None:
        requests = self._view.scheduler.requests
        if self._preempted:
            self._resumed(output.num_scheduled_tokens)
        for new in output.scheduled_new_reqs:
            request = requests.get(new.req_id)
            if request is None:
                continue
            self._view.note_cached(new.req_id, int(new.num_computed_tokens))
            self.turn_scheduled(request)
        if self.counts_service:
            for request_id, tokens in output.num_scheduled_tokens.items():
                request = requests.get(request_id)
                if request is not None and not request.num_output_tokens:  # output is counted at its end
                    self.tokens_prefilled(request, int(tokens))

    def _resumed(self, scheduled: Mapping[str, int]) -> None:
        """Preempted requests go on. Which list of the step has them depends on vLLM's model runner."""
        for request_id in self._preempted.intersection(scheduled):
            self._preempted.discard(request_id)
            request = self._view.scheduler.requests.get(request_id)
            if request is not None:
                self._view.note_cached(request_id, int(request.num_computed_tokens) - int(scheduled[request_id]))
                self.turn_scheduled(request)

    def without_token(self, output: Any) -> list[Any]:
        """The requests of a step that have no output yet."""
        requests = self._view.scheduler.requests
        found = (requests.get(request_id) for request_id in output.num_scheduled_tokens)
        return [request for request in found if request is not None and not request.num_output_tokens]

    def step_done(self, fresh: list[Any]) -> None:
        for request in fresh:
            if request.num_output_tokens:
                self.token_given(request)
                if request.status.name == "RUNNING" and self._retains():
                    self._hold_prompt(request)

    def _retains(self) -> bool:
        """Whether the daemon retained anything of late: what it may ask for is held until it has spoken."""
        retained_ns = self._retained_ns
        return retained_ns is not None and time.monotonic_ns() - retained_ns < _RETAINS_NS

    def _hold_prompt(self, request: Any) -> None:
        """The window before the prompt's end, and states there: they would be gone before a long answer is over."""
        key = None if self._no_pins else self._view.key_of(request)
        lock = self._view.lock_left_behind(key) if key is not None else None
        if lock is not None:
            self._let_prompt_go(request)
            self._prompts[request.request_id] = lock

    def _let_prompt_go(self, request: Any) -> None:
        lock = self._prompts.pop(request.request_id, None)
        if lock is not None:
            self._view.unlock(lock)

    def before_free(self, request: Any) -> None:
        """A turn ends: what it leaves in the cache is remembered, and kept while the daemon makes up its mind."""
        if self._view.note_context(int(request.num_computed_tokens)):
            self._probe.sample_at_once()  # the daemon counts in blocks
        key = None if self._no_pins else self._view.key_of(request)
        if key is None:
            return
        now_ns = time.monotonic_ns()
        program_id = self.turn_left(request, lambda: key, len(key), now_ns)
        if self._retains():
            lock = self._view.lock_held(key)
            if lock is not None:
                self._pins.hold(program_id, lock, _HOLD_NS)

    def freed(self, request: Any) -> None:
        self._let_prompt_go(request)
        self.turn_ended(request)
        self._preempted.discard(request.request_id)

    def before_preemption(self, request: Any) -> None:
        """Read before the engine forgets how much was computed."""
        self._let_prompt_go(request)
        self.turn_thrown_out(request, int(request.num_computed_tokens))
        self._preempted.add(request.request_id)

    def preempted(self) -> None:
        self.retracted(1)

    def room_for(self, request: Any) -> bool:
        """A request found no room: reclaim pins for it. True if it is worth another try.

        What comes next for a running request is a preemption. A waiting one would be asked for ever where nothing
        runs that could end.
        """
        stuck = request.status.name == "RUNNING" or not self._view.scheduler.running
        if stuck and self._prompts:  # nobody has asked for them
            self._view.unlock(self._prompts.popitem()[1])
            reclaimed = True
        elif self._pins.programs:
            pool = self._view.pool()
            reclaimed = self.reclaim(pool.free + pool.evictable + 1, stuck=stuck)
        else:
            return False
        self._nothing_to_evict = self._nothing_to_evict and not reclaimed
        return reclaimed

    def make_room(self, blocks: int) -> None:
        """So many blocks are about to be given out: those that the daemon's policy chooses become the first.

        A decoding request takes one at a time, and to choose is to look at every context: a few are chosen at once.
        """
        view = self._view
        if self._nothing_to_evict or not self._steering.evicts:
            return
        missing_tokens = blocks * view.page_tokens - view.pool().free
        if missing_tokens > 0:
            at_once = min(_MOST_AT_ONCE, view.pool_tokens // view.page_tokens // _PARTS) * view.page_tokens
            self._nothing_to_evict = not self.evict(max(missing_tokens, at_once))

    def before_reset(self) -> None:
        """The engine refuses to empty a cache of which anybody holds a part."""
        while self._prompts:
            self._view.unlock(self._prompts.popitem()[1])
        for program_id in list(self._pins.programs):
            self._pins.release(program_id)

    def after_reset(self) -> None:
        self.cache_emptied()

    # Commands

    def on_command(self, command: cmd.Command) -> None:
        """In the emitter's thread: an idle engine would not look before its next request."""
        super().on_command(command)
        if self._commands:
            self.wake()

    def _done(self, command: cmd.ProgramCommand, program_id: str) -> str | None:
        match command:
            case cmd.Demote():
                self._pins.release(program_id)
                return _NO_TIER
            case cmd.Prefetch():
                return _NO_TIER
            case cmd.Retain() | cmd.Discard() if self._no_pins:
                return self._no_pins
            case cmd.Retain():
                self._retained_ns = time.monotonic_ns()
        problem = super()._done(command, program_id)
        if isinstance(command, cmd.Retain):
            self._new_pin.set()
        return problem

    # The clock of an idle engine

    def belongs_to(self, core: Any) -> None:
        """EngineCore's loop begins: from now on it can be woken."""
        self._core = core
        threading.Thread(target=self._keep_time, name="penstock-clock", daemon=True).start()

    def wake(self) -> None:
        """Make an idle engine look at its scheduler. From any thread."""
        if self._core is not None:
            from vllm.v1.engine import EngineCoreRequestType

            self._core.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))

    def _keep_time(self) -> None:
        """An idle engine takes no step, and pins end all the same."""
        while True:
            due_ns = self._guard.run("pins", self._pins.next_deadline_ns)
            left_s = _LONGEST_SLEEP_S
            if due_ns is not None:
                left_s = (due_ns - time.monotonic_ns()) / NANOSECONDS_PER_SECOND + _SHORTEST_SLEEP_S
            if self._new_pin.wait(min(max(left_s, _LEAST_BETWEEN_S), _LONGEST_SLEEP_S)):
                self._new_pin.clear()
            elif self.is_idle:
                self._guard.run("wake", self.wake)
