"""The probe: gpu_submit, gpu_first_token, gpu_end and pool samples from an engine's scheduler.

**Paper**: MARS §4.1 and Table 1. Every reading is O(1) from the allocator's and the tree's counters, without a
synchronisation with the device.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controlplane.core.estimators.moving_average import MovingAverage
from controlplane.core.model.causes import CHANGE_FIELDS
from controlplane.core.model.events import (
    Event,
    FirstToken,
    OpenTurn,
    PoolSampled,
    ProgramArrived,
    ProgramEnded,
    TurnDecoded,
    TurnEnded,
    TurnPrefilled,
    TurnSubmitted,
)
from controlplane.core.model.types import seconds
from engine_hooks.engine.pins import Pins
from engine_hooks.engine.view import View, is_unnamed

_SAMPLE_EVERY_NS = seconds(1)
_MOST_CLAIMED = 4096
_HEALTH = "HEALTH_CHECK"  # the engine's requests to itself


@dataclass(slots=True)
class TrackedTurn:
    """A request that the scheduler holds."""

    turn_id: str
    program_id: str
    parent_id: str
    submitted_ns: int
    queued_ns: int  # by the clock of decisions
    prompt_tokens: int
    blocks: int
    handoff: str
    scheduled_ns: int = 0
    cached_tokens: int = 0
    has_token: bool = False
    lost_tokens: int = 0  # had been computed when it was thrown out, and it has not been scheduled since
    recomputed_tokens: int = 0
    missed: bool = False  # the last sample did not find it in the scheduler


class Probe:
    """Follows requests through one scheduler; ``send`` takes each event.

    ``host_tokens``: memory below the device, all and in use. ``now_ns`` is the clock of whatever is decided by what
    the probe knows. Durations are told by the machine's own.
    """

    def __init__(
        self,
        view: View,
        send: Callable[[Event], None],
        pins: Pins,
        host_tokens: Callable[[], tuple[int, int]],
        now_ns: Callable[[], int],
        passive_because: Callable[[], str],
    ) -> None:
        self.retractions = 0
        self._view = view
        self._id_of = view.id_of  # asked for each request at each step
        self._send = send
        self._pins = pins
        self._now_ns = now_ns
        self._passive_because = passive_because
        self._host_tokens = host_tokens
        self._turns: dict[str, TrackedTurn] = {}  # by the engine's id
        self._claimed: OrderedDict[str, None] = OrderedDict()  # turn ids that were given out
        self._output = MovingAverage(value=256.0)
        self._sampled_ns = 0

    def submitted(self, request: Any) -> str:
        """The scheduler queued a request: its program. One that was thrown out is queued again and is known."""
        program_id, request_id, view = self.program_of(request), self._id_of(request), self._view
        if request_id in self._turns or request_id.startswith(_HEALTH):
            return program_id
        prompt_tokens = view.prompt_tokens(request)
        most_output = view.most_output_tokens(request) or self._output.value
        parent_id, change = view.parent_of(request), view.change_of(request)
        turn = self._turns[request_id] = TrackedTurn(
            turn_id=self._claim(view.turn_of(request), request_id),
            program_id=program_id,
            parent_id=parent_id,
            submitted_ns=time.monotonic_ns(),
            queued_ns=self._now_ns(),
            prompt_tokens=prompt_tokens,
            blocks=view.blocks(prompt_tokens + round(min(most_output, self._output.value))),
            handoff=view.handoff_of(request),
        )
        if parent_id:
            self._send(ProgramArrived(program_id=turn.program_id, parent_id=parent_id))
        self._send(
            TurnSubmitted(
                program_id=turn.program_id,
                turn_id=turn.turn_id,
                projected_blocks=turn.blocks,
                prompt_tokens=prompt_tokens,
                trace=view.trace_of(request),
                **{name: getattr(change, name) for name in CHANGE_FIELDS},
            )
        )
        turn.submitted_ns = time.monotonic_ns()  # so that no duration is longer than its events are apart
        return program_id

    def program_of(self, request: Any) -> str:
        """The request's program: remembered while its turn is followed, since to find it out costs more."""
        turn = self._turns.get(self._id_of(request))
        return turn.program_id if turn is not None else self._view.program_of(request)

    def _claim(self, turn_id: str, request_id: str) -> str:
        """The gate's turn for its first request; a batch, or several samples, bring more than one."""
        if turn_id in self._claimed:
            return request_id
        self._claimed[turn_id] = None
        if len(self._claimed) > _MOST_CLAIMED:
            self._claimed.popitem(last=False)
        return turn_id

    def scheduled(self, request: Any) -> str:
        """Its first prefill chunk begins; the program, or an empty string for a later chunk."""
        turn = self._turns.get(self._id_of(request))
        if turn is None:
            return ""
        if turn.lost_tokens:
            turn.recomputed_tokens += max(0, turn.lost_tokens - self._view.cached_tokens(request))
            turn.lost_tokens = 0
        if turn.scheduled_ns:
            return ""
        turn.scheduled_ns = time.monotonic_ns()
        turn.cached_tokens = self._view.cached_tokens(request)
        return turn.program_id

    def preempted(self, request: Any, computed_tokens: int) -> None:
        """It was running, and waits again: so many of its tokens had been computed, prompt and output.

        What of them is computed once more is known when its next prefill begins: the cache may have a part.
        """
        turn = self._turns.get(self._id_of(request))
        if turn is not None and turn.scheduled_ns:
            turn.lost_tokens = computed_tokens

    def token(self, request: Any) -> None:
        turn = self._turns.get(self._id_of(request))
        if turn is None or turn.has_token:
            return
        turn.has_token = True
        now_ns = time.monotonic_ns()
        scheduled_ns = turn.scheduled_ns or turn.submitted_ns
        turn.scheduled_ns = turn.scheduled_ns or now_ns  # decoding alone is not always planned where we look
        self._send(
            FirstToken(
                program_id=turn.program_id,
                turn_id=turn.turn_id,
                launch_delay_ns=scheduled_ns - turn.submitted_ns,
                prefill_ns=now_ns - scheduled_ns,
                prompt_tokens=turn.prompt_tokens,
                cached_tokens=turn.cached_tokens,
                loaded_tokens=self._view.loaded_tokens(request),
            )
        )

    def ended(self, request: Any) -> None:
        """Its KV was released and it will not run again."""
        output_tokens, aborted = self._view.output_tokens(request), self._view.was_aborted(request)
        if output_tokens:
            self.token(request)  # a turn of one token ends in the step that gives it
        turn = self._turns.pop(self._id_of(request), None)
        if turn is None:
            return
        if not aborted:
            self._output.add(output_tokens)
        self._end(turn, output_tokens=output_tokens, ok=not aborted)

    def _end(self, turn: TrackedTurn, *, output_tokens: int = 0, ok: bool) -> None:
        service_ns = time.monotonic_ns() - turn.scheduled_ns if turn.scheduled_ns else 0
        end: dict[str, Any] = {
            "program_id": turn.program_id,
            "turn_id": turn.turn_id,
            "prompt_tokens": turn.prompt_tokens,
            "cached_tokens": turn.cached_tokens,
            "service_ns": service_ns,
            "recomputed_tokens": turn.recomputed_tokens,
        }
        if turn.handoff and self._view.decodes:
            self._send(TurnDecoded(handoff=turn.handoff, output_tokens=output_tokens, service_ns=service_ns, ok=ok))
        elif turn.handoff and ok:
            self._send(TurnPrefilled(handoff=turn.handoff, **end))
        else:
            self._send(TurnEnded(output_tokens=output_tokens, ok=ok, **end))
        if is_unnamed(turn.program_id):
            self._send(
                ProgramEnded(program_id=turn.program_id, reason="an unnamed request is a program of its own")
            )

    def sample_at_once(self) -> None:
        """The next sample is due with the present step."""
        self._sampled_ns = -_SAMPLE_EVERY_NS

    def sample_if_due(self) -> None:
        """Once a second, or at once: the pool, and the end of requests that left without a release."""
        now_ns = self._now_ns()
        if now_ns - self._sampled_ns < _SAMPLE_EVERY_NS:
            return
        self._sampled_ns = now_ns
        view, pool = self._view, self._view.pool()
        host_total, host_used = self._host_tokens()
        # What is held back for a moment is whoever's that needs room first; shared ones count twice.
        evictable_tokens = min(pool.evictable + self._pins.held_tokens, pool.total - pool.free)
        running, waiting = view.turns()
        self._send(
            PoolSampled(
                total_blocks=view.blocks(pool.total),
                free_blocks=pool.free // view.page_tokens,
                evictable_blocks=evictable_tokens // view.page_tokens,
                retained_blocks=view.blocks(self._pins.retained_tokens),
                block_tokens=view.page_tokens,
                turns_running=running,
                turns_waiting=waiting,
                retractions=self.retractions,
                host_total_blocks=host_total // view.page_tokens,
                host_used_blocks=view.blocks(host_used),
                context_tokens=view.context_tokens,
                reason=self._passive_because(),
                disaggregation=view.disaggregation,
            )
        )
        self._end_the_vanished()

    def _end_the_vanished(self) -> None:
        """A client that left while its request was queued ends it without any release of KV."""
        if not self._turns:
            return
        live = self._view.live_request_ids()
        for request_id, turn in list(self._turns.items()):
            if request_id in live:
                turn.missed = False
            elif not turn.missed:
                turn.missed = True  # it may be between two batches
            else:
                del self._turns[request_id]
                self._end(turn, ok=False)

    def open_turns(self) -> list[OpenTurn]:
        return [
            OpenTurn(program_id=t.program_id, turn_id=t.turn_id, blocks=t.blocks, parent_id=t.parent_id)
            for t in list(self._turns.values())
        ]

    def queued_ns(self, request: Any) -> int:
        """When the scheduler queued it first; now for one that is not followed."""
        turn = self._turns.get(self._id_of(request))
        return turn.queued_ns if turn is not None else self._now_ns()

    def running_programs(self) -> set[str]:
        return {turn.program_id for turn in self._turns.values()}

    def is_running(self, program_id: str) -> bool:
        return any(turn.program_id == program_id for turn in self._turns.values())
