"""What a plugin keeps of one whole scheduler, whichever engine's, and how it obeys the daemon.

Commands arrive in the emitter's thread and are obeyed at the next scheduling step, in the scheduler's own thread:
the engine's cache has no other. An engine's folder derives from ``Attached`` what its hooks call.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from controlplane.core.model import commands as cmd
from controlplane.core.model.events import (
    DECODES,
    CacheFlushed,
    Event,
    PinReclaimed,
    PoolSampled,
    PublisherState,
    TurnDecoded,
)
from controlplane.emit.emitter import Emitter
from engine_hooks.engine.contexts import Contexts
from engine_hooks.engine.pins import Pins
from engine_hooks.engine.probe import Probe
from engine_hooks.engine.settings import PluginMode, Settings
from engine_hooks.engine.steering import Beat, Lease, Steering
from engine_hooks.engine.view import View
from engine_hooks.guard import Guard

# Grants and the window are the HTTP side's; here they only tell whose context is waited for.
_OURS = (cmd.Retain, cmd.Release, cmd.Discard, cmd.Demote, cmd.Prefetch, cmd.Label)
_PARKING = (cmd.Admit, cmd.Pause, cmd.Place)


class Moments(ABC):
    """What an engine's hooks must call, guarded and in the scheduler's thread, in the order of a turn's life.

    Beside these: wake the engine for a command that comes while it is idle (``Attached.on_command``).
    """

    _view: View
    _contexts: Contexts
    _pins: Pins
    _steering: Steering
    _probe: Probe
    _send: Callable[[Event], None]

    def turn_queued(self, request: Any) -> None:
        """A request was queued, for the first time or again."""
        self._steering.arrived(self._probe.submitted(request))

    @abstractmethod
    def step_begins(self, *args: Any) -> None:
        """Before anything is planned."""

    def order(self, queue: list[Any]) -> None:
        """The engine is about to look at its queue, which is put into the policy's order."""
        self._steering.order(queue, self._probe.queued_ns)

    def turn_scheduled(self, request: Any) -> str:
        """A chunk of its prefill is planned: its program if that is the first one, whose pin ends.

        The request holds the blocks by itself from now on.
        """
        program_id = self._probe.scheduled(request)
        if program_id:
            self._pins.release(program_id)
        return program_id

    def tokens_prefilled(self, request: Any, tokens: int) -> None:
        """A step prefills so many of its tokens. Not asked for unless ``counts_service``."""
        self._steering.served(self._probe.program_of(request), tokens)

    def token_given(self, request: Any) -> None:
        """A step gave it output."""
        self._probe.token(request)

    def turn_left(self, request: Any, make_key: Callable[[], Any], tokens: int, now_ns: int) -> str:
        """A turn ends and leaves its context in the cache: its program. Before ``turn_ended``."""
        program_id = self._probe.program_of(request)
        if not self._view.decodes:  # nobody asks for what lies there
            self._contexts.remember(program_id, make_key, tokens, now_ns)
        return program_id

    def turn_ended(self, request: Any) -> None:
        """Its blocks were freed, and it will not run again."""
        self._steering.served(self._probe.program_of(request), self._view.output_tokens(request))
        self._probe.ended(request)

    def turn_thrown_out(self, request: Any, computed_tokens: int) -> None:
        """It ran, and waits again: so many of its tokens, prompt and output, had been computed."""
        self._probe.preempted(request, computed_tokens)

    def retracted(self, turns: int) -> None:
        """So many running turns were thrown out for want of room."""
        self._probe.retractions += turns

    def victims_last(self, running: list[Any], request_of: Callable[[Any], Any]) -> None:
        """The engine takes who must go from the end of ``running``: the policy's choice, where it has one."""
        if len(running) > 1 and self._steering.retracts:
            self._steering.victims_last(running, request_of)

    def reclaim(self, needed: Any, *, stuck: bool) -> bool:
        """There is no room for so many tokens, or what else the view measures: whether pins were given up for it.

        ``stuck``: what comes next is to throw a running turn out, or nothing runs that could end.
        """
        return self._pins.reclaim(needed, self._steering.policies.memory, stuck=stuck)

    def evict(self, needed_tokens: int) -> int:
        """Blocks are about to be evicted: the tokens that were freed by the policy's choice."""
        return self._steering.evict(needed_tokens, self.busy())

    def busy(self) -> set[str]:
        """Programs whose context must stay: a turn of theirs runs, or it is pinned."""
        return {*self._probe.running_programs(), *self._pins.programs}

    def cache_emptied(self) -> None:
        """Handles into it must never be used again."""
        self._pins.forget_all()
        self._send(CacheFlushed(reason="the engine emptied its cache"))


class Attached(Moments):
    """View, pins, policies and the emitter of one scheduler.

    :param role: on the bus.
    :param now_ns: the clock of all that is decided here.
    :param speaks: whether the daemon hears of it; for one that does not, another that decides alike speaks.
    """

    def __init__(
        self,
        settings: Settings,
        guard: Guard,
        view: View,
        role: str,
        now_ns: Callable[[], int] = time.monotonic_ns,
        *,
        speaks: bool = True,
    ) -> None:
        if view.decodes:
            settings = replace(settings, mode=PluginMode.PROBE)
        self._now_ns = now_ns
        self._settings = settings
        self._guard = guard
        self._place = f"{settings.node}/{role}"
        self._lease = Lease()
        self._commands: deque[cmd.Command] = deque(maxlen=65_536)
        self._view = view
        self._contexts = self._make_contexts()
        self._pins = Pins(view, self._contexts, self._pin_budget_ratio, now_ns)
        self._steering = self._make_steering()
        self.emitter = Emitter(
            url=settings.bus,
            node=settings.node,
            role=role,
            on_command=self.on_command,
            on_heartbeat=self.on_heartbeat if settings.obeys else None,
            state=self._state,
        )
        self._send = self._emit if speaks else _discard
        self._probe = Probe(view, self._send, self._pins, self._host_tokens, now_ns, self.passive_because)

    def _emit(self, event: Event) -> None:
        """What else a decode engine sees of a turn its prefill engine has told."""
        if not self._view.decodes or isinstance(event, (PoolSampled, TurnDecoded)):
            self.emitter.emit(event)

    def _make_contexts(self) -> Contexts:
        return Contexts()

    def _make_steering(self) -> Steering:
        return Steering(self._view, self._contexts, self._pins, self._now_ns)

    def _host_tokens(self) -> tuple[int, int]:
        return 0, 0

    def passive_because(self) -> str:
        """Why nothing is pinned or ordered here, though it is asked for; empty if it is."""
        return self.decodes_because

    @property
    def decodes_because(self) -> str:
        """Why a decode engine obeys nothing; empty for any other."""
        return DECODES if self._view.decodes else ""

    @property
    def scheduler(self) -> Any:
        return self._view.scheduler

    @property
    def pool_tokens(self) -> int:
        return self._view.pool_tokens

    @property
    def counts_service(self) -> bool:
        """Whether anybody reads what ``tokens_prefilled`` counts."""
        return self._steering.counts_service

    def _pin_budget_ratio(self) -> float:
        """The engine's own setting; else what the daemon's memory policy says."""
        own = self._settings.pin_budget_ratio
        return own if own is not None else self._steering.policies.memory.pin_budget_ratio

    # At each step

    def _expire_and_obey(self) -> None:
        """Policies, deadlines, commands."""
        self._take_up_policies()
        for program_id in self._pins.take_reclaimed():
            self._send(PinReclaimed(program_id=program_id))
        if self._pins.expire(self._outlasting):
            self._view.look_again()  # whoever found no room is asked again
            self._probe.sample_at_once()  # the daemon counts on what is retained
        while self._commands:  # each guarded on its own: deadlines go on, whatever becomes of commands
            self._guard.run("obey", self._obey, self._commands.popleft())

    def _take_up_policies(self) -> None:
        """Run the policies that hold in this step; the engine's own when the lease is over."""
        self._steering.follow(self._lease.text())

    def _outlasting(self) -> set[str]:
        """Programs whose pin holds past its deadline, since their next turn waits."""
        if not self._steering.policies.memory.pins_outlast_waits:
            return set()
        return {self._view.program_of(request) for request in self._view.waiting()}

    # The daemon's word

    def on_heartbeat(self, beat: Beat) -> None:
        """In the emitter's thread."""
        self._lease.receive(beat)

    def on_command(self, command: cmd.Command) -> None:
        """In the emitter's thread."""
        if isinstance(command, _OURS + _PARKING) and self._settings.obeys:
            self._take(command)

    def _take(self, command: cmd.Command) -> None:
        """Keep it for the next step."""
        self._commands.append(command)

    def _obey(self, command: cmd.Command) -> None:
        match command:
            case cmd.Pause():  # the gate answers these
                self._contexts.park(command.program_id)
            case cmd.Admit():
                self._contexts.let_in(command.program_id)
            case cmd.Place():
                # Where it goes on is the gate's to know; what lies here of one that goes elsewhere is nobody's.
                away = command.replica != self._place
                self._contexts.send_away(command.program_id, away)
                if away:
                    self._pins.release(command.program_id)
            case cmd.ProgramCommand():
                problem = self._done(command, command.program_id)
                if problem is not None:
                    self._answer(command, problem)

    def _done(self, command: cmd.ProgramCommand, program_id: str) -> str | None:
        """Do it: the problem, empty if it is done; None if it is answered later."""
        match command:
            case cmd.Retain():
                # A pin holds while its program's turn waits for room: it may be renewed.
                if self._probe.is_running(program_id) and program_id not in self._pins.programs:
                    return "a turn of it runs and holds its context already"
                return self._pins.retain(program_id, command.ttl_ns)
            case cmd.Release():
                self._pins.release(program_id)
            case cmd.Discard():
                return self._pins.discard(program_id)
            case cmd.Label():
                self._contexts.label(program_id, command.label)
            case _:
                return f"{type(command).__name__} is not supported by this engine's plugin yet"
        return ""

    def _answer(self, command: cmd.Command, problem: str) -> None:
        self._send(cmd.answer(command, problem))

    def _state(self) -> PublisherState:
        """In the emitter's thread; what it reads changes by whole values only."""
        turns = () if self._view.decodes else tuple(self._probe.open_turns())
        return PublisherState(open_turns=turns, pins=tuple(self._pins.listed()), role="engine")


def _discard(event: Event) -> None:
    """Nobody hears it."""
