"""Report an agent process's runs and the tools that they call.

A program is what OpenTelemetry's GenAI conventions call a conversation (``gen_ai.conversation.id``), a call is
``gen_ai.tool.call.id`` and a tool ``gen_ai.tool.name``. Importing this module needs only the
standard library.
"""

import asyncio
import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from controlplane import clocks
from controlplane.core.model.commands import (
    CancelEnvironment,
    Command,
    Freeze,
    PrepareEnvironment,
    StartTool,
    Thaw,
)
from controlplane.core.model.events import (
    EnvironmentWanted,
    Event,
    OpenTool,
    ProgramArrived,
    ProgramEnded,
    PublisherState,
    SandboxSampled,
    ToolEnded,
    ToolEnqueued,
    ToolStarted,
)
from controlplane.core.model.text import sanitize
from controlplane.emit.emitter import Emitter
from controlplane.emit.latest import Latest
from controlplane.emit.preparation import Preparation
from controlplane.emit.slot_wait import SlotWait
from controlplane.emit.stats import EmitterStats
from controlplane.transport.subjects import TOOL_ROLE

log = logging.getLogger("penstock")

_CAPACITY = 8192  # events that wait while the bus is away: some thousand calls
_PATIENCE_S = 300.0

T = TypeVar("T")


class SandboxHost(Protocol):
    """What freezes this process's sandboxes. Names of programs are the daemon's."""

    def freeze(self, program_id: str) -> None: ...
    def thaw(self, program_id: str, *, for_tool: bool = False) -> None: ...
    def wait(self, program_id: str) -> None:
        """Block until it is awake, for a while at most."""

    def restate(self) -> None:
        """Report each of them."""


@dataclass(slots=True)
class _Call:
    program_id: str
    tool: str
    started_ns: int = 0  # 0: it waits
    slot: SlotWait | None = None  # it waits for one of the host


class ToolReporter:
    """The reports of one process. No method blocks or raises; repeated or misordered reports are harmless.

    Programs and calls have here the names that the daemon gives them: ``sanitize``.

    A call that ends without having started (refused, cancelled) ends with duration 0. The thread starts with the
    first report.

    :param url: as the ``Emitter`` takes it.
    :param enabled: False: nothing is ever sent.
    :param slots: tools wait for a slot of the host, ``patience_s`` at most, where the daemon counts slots.
    :raises ConfigError: ``node`` is not a valid name.
    """

    def __init__(
        self,
        *,
        url: str | Callable[[], str],
        node: str,
        capacity: int = _CAPACITY,
        connect_options: dict[str, Any] | None = None,
        enabled: bool = True,
        slots: bool = False,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self.on_ended: list[Callable[[str, str], object]] = []  # called with each run that ends, and why
        self.sandboxes: SandboxHost | None = None
        self.unanswered = 0  # calls that waited for a slot, and started without
        self._enabled = enabled
        self._slots = slots and enabled
        self._patience_s = patience_s
        self._last_seen_s = 0.0
        self._preparations: dict[str, Preparation[Any]] = {}  # by program
        self._calls: Latest[tuple[str, str], _Call] = Latest()
        self._emitter = Emitter(
            url=url,
            node=node,
            role=TOOL_ROLE,
            capacity=capacity,
            state=self._state,
            on_command=self._obey,
            on_heartbeat=self._on_heartbeat,
            connect_options=connect_options,
        )
        self._started = False
        _reporters.add(self)

    def program_started(
        self, program_id: str, *, parent_id: str = "", tenant: str = "", aside: bool = False
    ) -> None:
        """Report that a run begins. ``parent_id`` started it, and waits for it in a tool unless ``aside``."""
        if program_id:
            arrived = ProgramArrived(program_id=program_id, parent_id=parent_id, tenant=tenant, aside=aside)
            self._emit(arrived, urgent=True)

    def program_ended(self, program_id: str, reason: str = "") -> None:
        """Report that a run is over and will not come back, so what it holds may go. Its open calls end with it.

        Children that still run are waited for.
        """
        name = sanitize(program_id)
        for key in [key for key in list(self._calls) if key[0] == name]:
            self.tool_ended(*key, ok=False)
        if program_id:
            self._emit(ProgramEnded(program_id=program_id, reason=reason), urgent=True)
            if (preparation := self._preparations.pop(name, None)) is not None:
                preparation.close()
            for notify in self.on_ended:
                with contextlib.suppress(Exception):
                    notify(program_id, reason)

    def tool_enqueued(self, program_id: str, call_id: str, tool: str) -> None:
        """Report that the agent asked for a tool, which may have to wait for others or for a person."""
        program_id, call_id = sanitize(program_id), sanitize(call_id)
        if program_id and call_id and tool and (program_id, call_id) not in self._calls:
            self._calls[program_id, call_id] = _Call(program_id, tool)
            self._emit(ToolEnqueued(program_id=program_id, call_id=call_id, tool=tool))
            self._wake(program_id)

    def wait_for_slot(self, program_id: str, call_id: str, tool: str) -> None:
        """Block this thread until the tool may start: its sandbox is awake and, with ``slots``, the host has room.

        In a thread with a running event loop it does not wait: use ``until_slot`` there.
        """
        self._wake(program_id)
        if _has_loop():
            return
        if self._slots and (wait := self._ask(program_id, call_id, tool)) is not None:
            wait.block()
            self._waited(wait)
        if self.sandboxes is not None:
            self.sandboxes.wait(sanitize(program_id))

    async def until_slot(self, program_id: str, call_id: str, tool: str) -> None:
        """Wait as ``wait_for_slot`` does, but in a task."""
        self._wake(program_id)
        if self._slots and (wait := self._ask(program_id, call_id, tool)) is not None:
            await wait.until_answered()
            self._waited(wait)
        if self.sandboxes is not None:
            await asyncio.to_thread(self.sandboxes.wait, sanitize(program_id))

    def tool_started(self, program_id: str, call_id: str, tool: str) -> None:
        """Report that the tool runs. It need not have been enqueued."""
        program_id, call_id = sanitize(program_id), sanitize(call_id)
        if not (program_id and call_id and tool):
            return
        call = self._calls.setdefault((program_id, call_id), _Call(program_id, tool))
        if not call.started_ns:
            call.started_ns, call.slot = time.monotonic_ns(), None
            self._emit(ToolStarted(program_id=program_id, call_id=call_id, tool=call.tool))
            self._wake(program_id)

    def tool_ended(self, program_id: str, call_id: str, *, ok: bool = True) -> None:
        """Report that the tool returned (``ok``), raised or timed out. An unknown call is ignored."""
        program_id, call_id = sanitize(program_id), sanitize(call_id)
        call = self._calls.pop((program_id, call_id), None)
        if call is None:
            return
        took_ns = time.monotonic_ns() - call.started_ns if call.started_ns else 0
        self._emit(ToolEnded(program_id=program_id, call_id=call_id, tool=call.tool, duration_ns=took_ns, ok=ok))

    def sandbox(self, program_id: str, **fields: Any) -> None:
        """Report what became of a program's sandbox: the fields of a ``SandboxSampled``."""
        self._emit(SandboxSampled(program_id=sanitize(program_id), **fields), urgent=True)

    @property
    def daemon_silent_s(self) -> float:
        """For how long no sign of life came from the daemon."""
        return clocks.awake_s() - self._daemon_seen_s()

    def _wake(self, program_id: str) -> None:
        """A tool comes: whatever the daemon knows of it, its sandbox is to be awake."""
        if self.sandboxes is not None:
            self.sandboxes.thaw(sanitize(program_id), for_tool=True)

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what waits, as ``Emitter.close`` does. Later reports are dropped."""
        self._emitter.close(timeout_s)

    @property
    def stats(self) -> EmitterStats:
        return self._emitter.stats

    def prepare(
        self, program_id: str, make: Callable[[], T], dispose: Callable[[T], object] | None = None
    ) -> Preparation[T]:
        """Have the environment of a program's tools made shortly before its turn comes.

        ``make`` runs in its own thread once the daemon says that the turn is near, at once if there is no daemon,
        and at the latest when the result is asked for. ``dispose`` takes back what was made for a program
        that left the queue. Ask before the program's first turn.
        """
        program_id = sanitize(program_id)
        wanted = EnvironmentWanted(program_id=program_id)

        def wait() -> SlotWait:
            return SlotWait(lambda: self._emit(wanted, urgent=True), self._daemon_seen_s, self._patience_s)

        preparation = self._preparations[program_id] = Preparation(make, dispose, wait)
        return preparation

    # Slots

    def _ask(self, program_id: str, call_id: str, tool: str) -> SlotWait | None:
        program_id, call_id = sanitize(program_id), sanitize(call_id)
        if not (program_id and call_id and tool):
            return None
        call = self._calls.setdefault((program_id, call_id), _Call(program_id, tool))
        if call.started_ns or call.slot is not None:
            return None
        event = ToolEnqueued(program_id=program_id, call_id=call_id, tool=tool, wants_slot=True)
        call.slot = SlotWait(lambda: self._emit(event, urgent=True), self._daemon_seen_s, self._patience_s)
        return call.slot

    def _waited(self, wait: SlotWait) -> None:
        if wait.is_answered:
            return
        self.unanswered += 1
        if self.unanswered == 1:
            log.warning("penstock: nobody says that the host has room for a tool: it starts without")

    def _obey(self, command: Command) -> None:
        """Obey the daemon's command, in the emitter's thread."""
        if isinstance(command, StartTool):
            call = self._calls.get((command.program_id, command.call_id))
            if call is not None and (wait := call.slot) is not None:
                wait.answer()
        elif isinstance(command, Thaw) and self.sandboxes is not None:
            self.sandboxes.thaw(command.program_id)
        elif isinstance(command, Freeze) and self.sandboxes is not None:
            if not any(program_id == command.program_id for program_id, _ in list(self._calls)):
                self.sandboxes.freeze(command.program_id)  # else it was said before a tool was heard of
        elif isinstance(command, PrepareEnvironment | CancelEnvironment):
            preparation = self._preparations.get(command.program_id)
            if preparation is not None and isinstance(command, PrepareEnvironment):
                preparation.begin()
            elif preparation is not None:
                preparation.cancel()

    def _on_heartbeat(self, heartbeat: object) -> None:
        if self._slots or self._preparations or self.sandboxes is not None:  # who waits for nothing needs no clock
            self._last_seen_s = clocks.awake_s()

    def _daemon_seen_s(self) -> float:
        """When the daemon last gave a sign of life; its own socket counts as one while it is open.

        Its silence counts from when it could have been heard: on a busy host seconds after a process began.
        """
        if self._emitter.is_loading:
            self._last_seen_s = clocks.awake_s()
        return clocks.awake_s() if self._emitter.stats.direct else self._last_seen_s

    def _emit(self, event: Event, urgent: bool = False) -> None:
        if not self._enabled:
            return
        if not self._started:
            self._started = True
            with contextlib.suppress(Exception):  # no thread to be had: the events are dropped and counted
                self._emitter.start()
        self._emitter.emit(event, urgent)

    def _state(self) -> PublisherState:
        """The state: the calls that have not ended. Called in the emitter's thread."""
        if self.sandboxes is not None:
            self.sandboxes.restate()
        open_tools = tuple(
            OpenTool(
                program_id=call.program_id,
                call_id=key[1],
                tool=call.tool,
                started=bool(call.started_ns),
                wants_slot=call.slot is not None,
            )
            for key, call in list(self._calls.items())
        )
        return PublisherState(open_tools=open_tools, role=TOOL_ROLE)


def _has_loop() -> bool:
    """True if waiting in this thread would hold up an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_reporters: "weakref.WeakSet[ToolReporter]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Forget the open calls: those of the parent's threads are not the child's to report."""
    for reporter in list(_reporters):
        reporter._calls.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
