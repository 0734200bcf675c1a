"""What a plugin keeps of one whole scheduler, whichever engine's, and how it obeys the daemon.

Commands arrive in the emitter's thread and are obeyed at the next scheduling step, in the scheduler's own thread:
the engine's cache has no other. An engine's folder derives from ``Attached`` what its hooks call.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from controlplane.core import commands as cmd
from controlplane.core.events import CommandApplied, CommandRejected, Event, PinReclaimed, PublisherState
from controlplane.emit.emitter import Emitter
from engine_hooks.engine.contexts import Contexts
from engine_hooks.engine.pins import Pins
from engine_hooks.engine.probe import Probe
from engine_hooks.engine.settings import Settings
from engine_hooks.engine.steering import Beat, Steering
from engine_hooks.engine.view import View
from engine_hooks.guard import Guard

# Grants and the window are the HTTP side's; here they only tell whose context is waited for.
_OURS = (cmd.Retain, cmd.Release, cmd.Discard, cmd.Demote, cmd.Prefetch, cmd.Label)
_PARKING = (cmd.Admit, cmd.Pause, cmd.Place)


class Attached:
    """View, pins, policies and the emitter of one scheduler; its methods are called by hooks, guarded.

    :param role: on the bus.
    :param now_ns: the clock of all that is decided here.
    :param speaks: whether the daemon hears of it; for one that does not, another that decides alike speaks.
    """

    _view: View
    _steering: Steering
    _probe: Probe

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
        self._now_ns = now_ns
        self._settings = settings
        self._guard = guard
        self._place = f"{settings.node}/{role}"
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
        self._send = self.emitter.emit if speaks else _unsaid
        self._probe = self._make_probe()

    def _make_contexts(self) -> Contexts:
        return Contexts()

    def _make_steering(self) -> Steering:
        return Steering(
            self._view, self._contexts, self._view.program_of, lambda: self._pins.programs, self._now_ns
        )

    def _make_probe(self) -> Probe:
        return Probe(
            self._view,
            self._send,
            lambda: self._pins.retained_tokens,
            held_tokens=lambda: self._pins.held_tokens,
            now_ns=self._now_ns,
        )

    @property
    def scheduler(self) -> Any:
        """The engine's own."""
        return self._view.scheduler

    @property
    def pool_tokens(self) -> int:
        """The size of the KV pool."""
        return self._view.pool_tokens

    def _pin_budget_ratio(self) -> float:
        """The engine's own setting; else what the daemon's memory policy says."""
        own = self._settings.pin_budget_ratio
        return own if own is not None else self._steering.policies.memory.pin_budget_ratio

    # At each step

    def _expire_and_obey(self) -> None:
        """A scheduling step begins: policies, deadlines, commands."""
        self._take_up_policies()
        for program_id in self._pins.take_reclaimed():
            self._send(PinReclaimed(program_id=program_id))
        if self._pins.expire(self._outlasting):
            self._view.look_again()  # whoever found no room is asked again
            self._probe.sample_at_once()  # the daemon counts on what is retained
        while self._commands:  # each guarded on its own: deadlines go on, whatever becomes of commands
            self._guard.run("obey", self._obey, self._commands.popleft())

    def _take_up_policies(self) -> None:
        """Run the policies that hold in this step."""
        self._steering.step()

    def _outlasting(self) -> set[str]:
        """Programs whose pin holds past its deadline, since their next turn waits."""
        if not self._steering.policies.memory.pins_outlast_waits:
            return set()
        return {self._view.program_of(request) for request in self._waiting()}

    def _waiting(self) -> Any:
        """The requests that wait in the engine's queue."""
        raise NotImplementedError

    # The daemon's word

    def on_heartbeat(self, beat: Beat) -> None:
        """In the emitter's thread."""
        self._steering.heard(beat)

    def on_command(self, command: cmd.Command) -> None:
        """In the emitter's thread."""
        if isinstance(command, _OURS + _PARKING) and self._settings.obeys:
            self._take(command)

    def _take(self, command: cmd.Command) -> None:
        """Keep it for the next step."""
        self._commands.append(command)

    def _obey(self, command: cmd.Command) -> None:
        if not isinstance(command, cmd.ProgramCommand):
            return
        if isinstance(command, cmd.Place):
            self._send_away(command)
            return
        if isinstance(command, _PARKING):
            self._contexts.park(command.program_id, isinstance(command, cmd.Pause))
            if not isinstance(command, cmd.Pause):
                self._contexts.label(command.program_id, "")
            return  # the gate answers these
        problem = self._done(command, command.program_id)
        if problem is not None:
            self._answer(command, command.program_id, problem)

    def _send_away(self, command: cmd.Place) -> None:
        """Where it goes on is the gate's to know; what lies here of a program that goes elsewhere is nobody's."""
        away = command.replica != self._place
        self._contexts.send_away(command.program_id, away)
        if away:
            self._pins.release(command.program_id)

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

    def _answer(self, command: cmd.Command, program_id: str, problem: str) -> None:
        if problem:
            self._send(CommandRejected(command_id=command.command_id, program_id=program_id, reason=problem))
        else:
            self._send(CommandApplied(command_id=command.command_id, program_id=program_id))

    def _state(self) -> PublisherState:
        """In the emitter's thread; what it reads changes by whole values only."""
        return PublisherState(
            open_turns=tuple(self._probe.open_turns()), pins=tuple(self._pins.listed()), role="engine"
        )


def _unsaid(event: Event) -> None:
    """Nobody hears it."""
