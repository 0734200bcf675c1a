"""The link between a gate and the daemon: it takes what comes over the bus, and answers."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from controlplane.core.model.commands import (
    CancelEnvironment,
    Command,
    Freeze,
    Place,
    PrepareEnvironment,
    StartTool,
    StateRequest,
    Thaw,
    answer,
)
from controlplane.core.model.events import PublisherState
from controlplane.gate.command_sequencer import CommandSequencer
from controlplane.gate.gate import Gate, Send

if TYPE_CHECKING:
    from controlplane.wire.heartbeat import Heartbeat


class GateLink:
    """Hands heartbeats and commands to ``gate``, and answers the daemon. Use it in the gate's thread.

    A gate that missed a command reports its state at the next heartbeat, and the daemon makes up for it.

    ``publisher`` returns the emitter's name. ``state`` returns all that this publisher holds; the default is what
    the gate holds. ``obey`` takes the commands that are not the gate's and returns a problem, empty if it obeyed;
    without it another publisher answers them.
    """

    def __init__(
        self,
        gate: Gate,
        *,
        send: Send,
        publisher: Callable[[], str],
        state: Callable[[], PublisherState] | None = None,
        obey: Callable[[Command], str] | None = None,
    ) -> None:
        self._gate = gate
        self._send = send
        self._publisher = publisher
        self._state = state if state is not None else gate.state
        self._obey = obey
        self._sequencer = CommandSequencer()

    def receive(self, item: "Command | Heartbeat", received_ns: int) -> None:
        """Take a command or a heartbeat from the daemon, in order of receipt."""
        if not isinstance(item, Command):
            if not self._gate.on_heartbeat(item, received_ns):
                return
            self._gate.places.chosen = True
            if self._sequencer.misses(item):
                self._send(self._state(), True)
        elif isinstance(item, StateRequest):
            self._sequencer.is_next(item.command_id)
            if item.publisher in ("", self._publisher()):
                self._send(self._state(), True)
        elif not self._sequencer.is_next(item.command_id):
            return  # of a daemon that was replaced, or overtaken by a later word
        elif isinstance(item, StartTool | PrepareEnvironment | CancelEnvironment | Freeze | Thaw):
            return  # a tool runtime's
        elif isinstance(item, Place):
            if self._gate.places.assign(item.program_id, item.replica):
                self._send(answer(item, ""), False)
        elif self._gate.on_command(item):
            self._send(answer(item, ""), False)
        elif self._obey is not None:
            self._send(answer(item, self._obey(item)), False)
