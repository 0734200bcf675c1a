"""A world in which each root program has a sandbox on the tool host, from its arrival to its end.

A sandbox takes memory, and while it is awake some of the CPUs even if no tool runs in it: a server under test, a
watcher of files, a language server. Where the host has no memory left for one, the program waits outside until
another one has ended, as a pod does. The controller may have it frozen: then it takes no CPU, and of its memory
what is not reclaimed. A tool that finds its sandbox asleep has it woken, and waits for that.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.session import Session
from controlplane.lab.sim.world import World

_GIB = 1 << 30
_RANK = 0  # of what changes the world


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxModel:
    """What one takes, and how long it takes to freeze and to wake."""

    memory_gb: float = 1.0
    cpus: float = 0.05  # while it is awake, whether or not a tool runs
    reclaimed_ratio: float = 0.0  # of its memory, while it is frozen; 0: all stays resident
    freeze_s: float = 0.02
    wake_s: float = 0.02
    host_gb: float = 0.0  # memory for sandboxes; 0: any


@dataclass(slots=True)
class _Sandbox:
    session: Session
    frozen: bool = False
    changes_to: bool = False  # what it is or will be
    asked_ns: int = 0
    needed_ns: int = 0  # since when a tool waits
    waiting: list[Callable[[], None]] = field(default_factory=list)


class SandboxWorld(World):
    """``World`` with sandboxes. Sub-agents use that of their root."""

    def __init__(self, *arguments: Any, model: SandboxModel, **options: Any) -> None:
        self._model = model
        self._sandboxes: dict[str, _Sandbox] = {}
        self._outside: deque[Session] = deque()
        self._held_bytes = 0.0
        super().__init__(*arguments, **options)
        self.tools.when_ready = self._when_awake

    def _arrive(self, session: Session) -> None:
        if session.parent is not None:
            super()._arrive(session)
            return
        session.arrived_ns = self._kernel.now_ns
        self._outside.append(session)
        self._begin_those_that_fit()

    def _begin_those_that_fit(self) -> None:
        most = self._model.host_gb * _GIB
        while self._outside and (not most or self._held_bytes + self._bytes(frozen=False) <= most):
            session = self._outside.popleft()
            arrived_ns = session.arrived_ns
            sandbox = self._sandboxes[session.program_id] = _Sandbox(session)
            self._take(sandbox, +1)
            self._tell(sandbox)
            super()._arrive(session)
            session.arrived_ns = arrived_ns  # its time outside counts

    def _end_program(self, session: Session, error: str = "") -> None:
        sandbox = self._sandboxes.pop(session.program_id, None)
        if sandbox is not None:
            self._take(sandbox, -1)
            self._tell(sandbox, gone=True)
        super()._end_program(session, error)
        if sandbox is not None:
            self._begin_those_that_fit()

    def _apply(self, command: cmd.Command, engine: EngineModel) -> str:
        if not isinstance(command, cmd.Freeze | cmd.Thaw):
            return super()._apply(command, engine)
        if (sandbox := self._sandboxes.get(command.program_id)) is not None:
            self._ask_to_be(sandbox, frozen=isinstance(command, cmd.Freeze))
        return ""

    def _when_awake(self, session: Session, then: Callable[[], None]) -> None:
        while session.parent is not None:
            session = session.parent
        sandbox = self._sandboxes[session.program_id]
        if not (sandbox.frozen or sandbox.changes_to):
            then()
            return
        sandbox.waiting.append(then)
        sandbox.needed_ns = sandbox.needed_ns or self._kernel.now_ns
        self._ask_to_be(sandbox, frozen=False)

    def _ask_to_be(self, sandbox: _Sandbox, *, frozen: bool) -> None:
        if sandbox.changes_to == frozen or (frozen and sandbox.waiting):
            return
        sandbox.changes_to, sandbox.asked_ns = frozen, self._kernel.now_ns
        takes_ns = seconds(self._model.freeze_s if frozen else self._model.wake_s)
        self._kernel.schedule(self._kernel.now_ns + takes_ns, _RANK, self._changed, sandbox, frozen)

    def _changed(self, sandbox: _Sandbox, frozen: bool) -> None:
        if sandbox.session.program_id not in self._sandboxes or sandbox.changes_to != frozen:
            return  # it was told otherwise meanwhile
        if sandbox.frozen != frozen:
            self._take(sandbox, -1)
            sandbox.frozen = frozen
            self._take(sandbox, +1)
        now_ns, waiting = self._kernel.now_ns, sandbox.waiting
        late_ns = now_ns - sandbox.needed_ns if sandbox.needed_ns else 0
        sandbox.waiting, sandbox.needed_ns = [], 0
        self._tell(sandbox, took_ns=max(1, now_ns - sandbox.asked_ns), late_ns=late_ns)
        for then in waiting:
            then()
        self._begin_those_that_fit()

    def _bytes(self, *, frozen: bool) -> float:
        model = self._model
        return model.memory_gb * _GIB * ((1.0 - model.reclaimed_ratio) if frozen else 1.0)

    def _take(self, sandbox: _Sandbox, by: int) -> None:
        self._held_bytes += by * self._bytes(frozen=sandbox.frozen)
        if not sandbox.frozen and self.tools.host is not None:
            self.tools.host.take(by * self._model.cpus)

    def _tell(self, sandbox: _Sandbox, **more: Any) -> None:
        stamp = self.tools.publisher.stamp(self._kernel.now_ns)
        self._publish(
            ev.SandboxSampled(
                **stamp,
                program_id=sandbox.session.program_id,
                frozen=sandbox.frozen,
                awake_bytes=round(self._bytes(frozen=False)),
                held_bytes=round(self._bytes(frozen=sandbox.frozen)),
                **more,
            )
        )
