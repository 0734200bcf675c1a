"""What the plugin keeps of one whole SGLang scheduler, and what its hooks do there."""

import time
from collections.abc import Callable
from typing import Any

from controlplane.core.model import commands as cmd
from controlplane.core.model.events import ContextMoved
from controlplane.core.model.places import role_of_rank
from engine_hooks.engine.attached import Attached as Base
from engine_hooks.engine.settings import ENGINE, Settings, role_of
from engine_hooks.engine.view import is_unnamed
from engine_hooks.guard import Guard
from engine_hooks.sglang.engine_view import EngineView, extended_tokens
from engine_hooks.sglang.host_tier import HostTier
from engine_hooks.sglang.light_sleep import lighten
from engine_hooks.sglang.moves import TierMoves
from engine_hooks.sglang.processes import rank_of_scheduler
from engine_hooks.sglang.steering import SglangSteering

_LEAST_ROOM_TOKENS = 8
_NOT_MOVED = (
    "contexts are not moved to host memory and back where several ranks decide alike, or engines share a turn"
)


class Attached(Base):
    """Moves and host memory beside what every engine has."""

    _view: EngineView
    _steering: SglangSteering
    _moves_contexts = True  # between the device and host memory

    def __init__(
        self,
        scheduler: Any,
        settings: Settings,
        guard: Guard,
        now_ns: Callable[[], int] = time.monotonic_ns,
        *,
        speaks: bool = True,
    ) -> None:
        self._begun_rid = ""  # the unfinished prefill that began with a shrunk chunk
        view = EngineView(scheduler)
        self._moves_contexts = self._moves_contexts and not view.disaggregation
        self._host = host = HostTier(view)
        role = role_of_rank(role_of(ENGINE, scheduler.server_args), rank_of_scheduler(scheduler))
        super().__init__(settings, guard, view, role, now_ns, speaks=speaks)
        self._moves = TierMoves(host, self._contexts, self._pins, self._probe.is_running, self._answer)
        self._sleep = lighten(scheduler, self._due_ns, guard)

    def _make_steering(self) -> SglangSteering:
        host = self._host if self._view.has_host_tier and self._moves_contexts else None
        return SglangSteering(self._view, self._contexts, self._pins, self._now_ns, host)

    def _host_tokens(self) -> tuple[int, int]:
        return self._host.pool()

    def begin(self) -> None:
        self.emitter.start()

    def account(self) -> dict[str, object]:
        """What the health page shows of this scheduler beside what every engine's has."""
        return {}

    # Hooks

    def request_queued(self, result: Any, saved: Any, scheduler: Any, request: Any, *args: Any) -> None:
        self.turn_thrown_out(request, self._view.computed_tokens(request))  # if it ran: else it is not known
        self.turn_queued(request)

    def prefill_planned(self, plan: Any, saved: Any, *args: Any) -> None:
        batch = getattr(plan, "batch_to_run", plan)
        if batch is None:
            return
        self._host.hold_back(batch)  # before all else: what it does is needed for the batch to run right
        self._uncount_waiting_prefill(batch)
        for request in batch.reqs:
            program_id = self.turn_scheduled(request)
            if program_id:
                self._host.copies.forget(program_id)
        if self.counts_service:
            for request in batch.reqs:
                self.tokens_prefilled(request, extended_tokens(request))

    def _uncount_waiting_prefill(self, batch: Any) -> None:
        """Keep SGLang's count of chunks in flight right for a prefill that waits for room while others run.

        It counts one for its unfinished prefill in every batch. Of ours that waits there is none in this one: the
        count would never come down, and the engine would take the last chunk for a middle one and drop its token.
        """
        unfinished = getattr(self._view.scheduler, "chunked_req", None)
        if unfinished is None or unfinished.rid != self._begun_rid:
            return
        if all(request is not unfinished for request in batch.reqs):
            unfinished.inflight_middle_chunks -= 1

    def step_done(self, result: Any, saved: Any, scheduler: Any, batch: Any, *args: Any) -> None:
        for request in batch.reqs:
            if request.output_ids:
                self.token_given(request)

    def before_release(self, request: Any, tree: Any, *args: Any) -> Any:
        """What the release will change, read beforehand."""
        return self._view.late_key(request) if request.finished() else None

    def released(self, result: Any, saved: Any, request: Any, *args: Any) -> None:
        if saved is None:
            return
        make_key, tokens = saved
        self.turn_left(request, make_key, tokens, self._now_ns())
        self.turn_ended(request)

    def step_begins(self, *args: Any) -> None:
        self._expire_and_obey()
        self._moves.step()
        self._report_copies()
        self._probe.sample_if_due()

    def _report_copies(self) -> None:
        for program_id, tokens in self._host.copies.news():
            if not is_unnamed(program_id):
                self._send(ContextMoved(program_id=program_id, below_tokens=tokens))

    def decode_ordered(self, order: list[int], saved: Any, requests: Any, *args: Any) -> None:
        """Indices of running requests: SGLang retracts from the end until the next step has its room."""
        self.victims_last(order, requests.__getitem__)

    def decode_retracted(self, result: Any, saved: Any, *args: Any) -> None:
        self.retracted(len(result[0]))

    def queue_ordered(self, result: Any, saved: Any, policy: Any, waiting_queue: Any, *args: Any) -> None:
        self.order(waiting_queue)

    def tree_reset(self, result: Any, saved: Any, tree: Any, *args: Any) -> None:
        self.cache_emptied()
        self._moves.forget_all()

    def host_freed(self, tree: Any, device_frees: Any, host_frees: Any, *args: Any) -> None:
        """The tree gives slots back, of both memories."""
        self._host.copies.freed(host_frees)

    def host_full(self, tree: Any, num_tokens: int, *args: Any) -> None:
        self._steering.order_host(int(num_tokens))

    def evict_first(self, tree: Any, params: Any) -> tuple[int, Any]:
        """Evict by the daemon's policy; the tokens freed, and what the engine has still to evict.

        Every allocation that finds too little free comes here first, with what it lacks of each component. What
        cannot be evicted either would throw out a running turn or end the scheduler: so pins are given up for it.
        """
        view = self._view
        asked = view.asked(params)
        if self._pins.programs:
            self.reclaim(asked, stuck=True)
        if not asked or not self._steering.evicts:
            return 0, params
        free = view.free(asked)
        freed_tokens = self.evict(int(params.num_tokens)) if params.num_tokens else 0
        freed_tokens += self._steering.evict_parked(lambda: bool(view.asked(view.rest(params, free))), self.busy())
        return freed_tokens, view.rest(params, free) if freed_tokens else params

    def first_chunk(self, verdict: Any, adder: Any, request: Any, sizes: dict[str, Any]) -> Any:
        """The engine's verdict on a waiting request, and how many tokens of it may begin; or ours.

        A prefill that does not fit as a whole may begin with a part. SGLang keeps one unfinished prefill only, and
        relies on it to take the whole of every step's chunk. Ours leaves some, or waits, so that a second one could
        begin in what is left: such a request waits. So does one whose context lies in host memory: the engine would
        load all of that for the part, into room that others need.
        """
        fits, limit_tokens = verdict
        if not adder.rem_chunk_tokens or len(self._view.tree.tree_components) > 1 or self._view.disaggregation:
            return verdict  # what a part takes of a window, of states or of a transfer only the engine can tell
        wanted_tokens = int(sizes["extend_input_len"])
        if self._view.scheduler.chunked_req is not None or adder.new_chunked_req is not None:
            if not fits or limit_tokens is None or adder.ceil_paged_tokens(wanted_tokens) <= limit_tokens:
                return verdict
            return True, 0
        if fits or self._guard.is_disabled("get_new_batch_prefill"):  # else nobody would keep the count right
            return verdict
        if getattr(request, "host_hit_length", 0):
            return verdict
        most_tokens = min(wanted_tokens, int(adder.rem_chunk_tokens))
        tokens = self._steering.chunk(adder.memory_budget, adder.can_run_list, most_tokens)
        if not 0 < tokens < wanted_tokens:
            return verdict  # as a whole it would run against the engine's own judgement
        self._begun_rid = request.rid
        return True, tokens

    def next_chunk(self, budget: Any, chunk_limit: int) -> int:
        """How much more of a prefill that was begun so may run: nothing while others need the room. -1: as ever."""
        scheduler = self._view.scheduler
        if scheduler.chunked_req is None or scheduler.chunked_req.rid != self._begun_rid:
            return -1
        if self._guard.is_disabled("get_new_batch_prefill") or self._guard.is_disabled("check_prefill"):
            return -1
        tokens = self._steering.chunk(budget, (), chunk_limit)
        return tokens if tokens or self._view.decoding() else -1

    def room_for(self, adder: Any, request: Any) -> bool:
        """A request found no room: reclaim pins for it. True if it is worth another try."""
        if not self._pins.tokens or request in adder.can_run_list:
            return False
        view, budget = self._view, adder.memory_budget
        prompt_tokens = len(request.origin_input_ids) + len(request.output_ids)
        output_tokens = int(request.sampling_params.max_new_tokens or 0)
        full, *others = view.tree.tree_components
        whole = prompt_tokens + output_tokens + _LEAST_ROOM_TOKENS + int(budget.total_offset)
        needed = {full: min(view.pool_tokens, whole)}
        if window := [each for each in others if each.name == "SWA"]:
            extend = budget.ceil_paged_tokens(prompt_tokens - view.cached_tokens(request))
            of_window = budget.swa_tokens(extend, output_tokens, chunk_limit=adder.rem_chunk_tokens)
            most = int(budget.allocator.size_swa)
            needed[window[0]] = min(most, int(of_window + budget.swa_offset) + 1)
        free = view.free(needed)
        runs = view.decoding() or adder.can_run_list or view.scheduler.chunked_req
        return self.reclaim({each: count - free[each] for each, count in needed.items()}, stuck=not runs)

    # Commands, and the sleep of an idle engine

    def _take(self, command: cmd.Command) -> None:
        """In the emitter's thread: an engine that sleeps is woken."""
        super()._take(command)
        if self._sleep is not None:
            self._sleep.wake()

    def _due_ns(self) -> int | None:
        """When the next pin ends, or a move that waits is to be looked at again; None without either."""
        due_ns = (self._pins.next_deadline_ns(), self._moves.next_look_ns())
        return min((each for each in due_ns if each is not None), default=None)

    def _done(self, command: cmd.ProgramCommand, program_id: str) -> str | None:
        match command:
            case cmd.Demote() | cmd.Prefetch() if self._view.has_host_tier and not self._moves_contexts:
                self._pins.release(program_id)
                return _NOT_MOVED
            case cmd.Discard() if not self._view.has_host_tier or not self._moves_contexts:
                return super()._done(command, program_id)
            case cmd.Prefetch() if self._guard.is_disabled("get_new_batch_prefill"):
                return "the hook that makes turns wait for the load was given up"
            case cmd.Demote() | cmd.Prefetch() | cmd.Discard():
                self._moves.begin(command)
                return None  # answered when it was done
        return super()._done(command, program_id)
