"""The event emitter: what hooks in the engine, the gate and the tool runtime publish through.

A hook never blocks and never raises. ``emit`` appends to a bounded queue; a daemon thread owns the
connection, sends batches and hears commands. Importing this module needs only the standard library: the
thread loads protobuf and nats.
"""

import atexit
import os
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from controlplane.core.model.commands import Command
from controlplane.core.model.errors import require
from controlplane.core.model.events import Event, PublisherState
from controlplane.emit.publisher_loop import LoopOptions, PublisherLoop, Queued
from controlplane.emit.runtime import Runtime
from controlplane.emit.stats import EmitterStats
from controlplane.transport import subjects

if TYPE_CHECKING:
    from controlplane.wire.heartbeat import Heartbeat

_IMPORTS_TIMEOUT_S = 10.0  # of the thread's libraries: CPU time, which a busy host has not at once


class Emitter:
    """Publishes one role's events of one node.

    :param url: the NATS server, or a callable that returns it, which is called before every attempt to connect,
        so that a server that moved is found. While none answers, events wait.
    :param role: ``engine``, ``gate``, ``tool``, ...: the last part of the subject.
    :param capacity: events that wait at most. The oldest is dropped for a new one; readers see the gap.
    :param linger_s: how long the first event of a batch waits for others. Urgent events do not wait.
    :param on_command: called with each command, in the emitter's thread: be quick, and hop to your own thread.
    :param on_heartbeat: called with each heartbeat of the daemon, in the emitter's thread.
    :param state: called in the emitter's thread when the daemon asks what this publisher holds. An event must
        be in that state before it is emitted.
    :param connect_options: more arguments for ``nats.connect``: TLS, credentials.
    :param runtime: clock, thread and client, if they are not the process's own.
    :raises ConfigError: a name or a number is out of range.
    """

    def __init__(
        self,
        *,
        url: str | Callable[[], str],
        node: str,
        role: str,
        capacity: int = 65536,
        linger_s: float = 0.005,
        on_command: Callable[[Command], None] | None = None,
        on_heartbeat: "Callable[[Heartbeat], None] | None" = None,
        state: Callable[[], PublisherState] | None = None,
        connect_options: dict[str, Any] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        require("capacity", capacity, low=1, high=float("inf"))
        require("linger_s", linger_s, low=0, high=60)
        subjects.event_subject(node, role)
        self._options = LoopOptions(
            url=url if callable(url) else partial(str, url),
            node=node,
            role=role,
            linger_s=linger_s,
            on_command=on_command,
            on_heartbeat=on_heartbeat,
            state=state,
            connect_options=connect_options or {},
            runtime=runtime or Runtime(),
        )
        self._capacity = capacity
        self._now_ns = self._options.runtime.now_ns
        self._started = False
        self._closed = False
        self._begin()
        _emitters.add(self)

    def _begin(self) -> None:
        """Make what each process must have of its own: a queue, counters and a boot id."""
        self.publisher = subjects.publisher_name(self._options.node, self._options.role, uuid.uuid4().hex[:12])
        self._queue: deque[Queued] = deque()
        self._dropped = 0
        self._lock = threading.RLock()  # re-entrant: a signal handler may emit, too
        self._pump: PublisherLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, *, role: str = "") -> None:
        """Start the thread. Events emitted earlier are sent. A second call does nothing.

        :param role: replaces the role that the emitter was made with, if it is only known now.
        :raises ConfigError: ``role`` is not a valid name.
        """
        with self._lock:
            if self._thread is not None or self._closed:
                return
            if role and role != self._options.role:
                self._options = replace(self._options, role=role)
                boot_id = self.publisher.rpartition("/")[2]
                self.publisher = subjects.publisher_name(self._options.node, role, boot_id)
            self._started = True
            pump = PublisherLoop(self._options, self.publisher, self._queue, lambda: self._dropped)
            self._thread = self._options.runtime.thread(pump, f"penstock-emit-{self._options.role}")
            self._pump = pump
            atexit.register(self.close)

    def emit(self, event: Event, urgent: bool = False) -> None:
        """Queue ``event``, stamped with this machine's monotonic clock. Never blocks, never raises.

        :param urgent: send now instead of with the next batch.
        """
        try:
            queue = self._queue
            if len(queue) >= self._capacity:
                self._drop_oldest()
            queue.append((self._now_ns(), event))
            pump = self._pump
            if pump is None or pump.dead:
                self._emit_without_thread()
            elif urgent:
                if not pump.hurried:
                    pump.hurried = True
                    pump.wake()
            elif pump.sleeping:
                pump.wake()
        except Exception:
            # Most likely the loop has just ended. There is nobody to tell but the counter.
            self._dropped += 1

    def _drop_oldest(self) -> None:
        with self._lock:
            self._queue.popleft()
            self._dropped += 1

    def _emit_without_thread(self) -> None:
        if self._pump is not None or self._closed:
            while self._queue:
                self._drop_oldest()
        elif self._started:  # in the child of a fork
            self.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is queued and end the thread. Later events are dropped. The process's exit does this, too.

        :param timeout_s: how long at most a server may take that answers; one that refuses is tried once. What this
            process takes itself to import its client comes on top: else a short process on a busy host would end
            before it asked the server anything.
        """
        with self._lock:
            self._closed = True
            pump, thread = self._pump, self._thread
        atexit.unregister(self.close)
        if pump is None or thread is None or thread is threading.current_thread():
            return
        if self.is_loading:
            pump.tried.wait(_IMPORTS_TIMEOUT_S)
        pump.finish(timeout_s)
        thread.join(timeout_s)
        if not thread.is_alive():
            pump.dead = True

    @property
    def is_loading(self) -> bool:
        """True while the thread imports its libraries: no server has been asked yet, so that none can be silent."""
        pump, thread = self._pump, self._thread
        return pump is not None and thread is not None and thread.is_alive() and not pump.tried.is_set()

    @property
    def stats(self) -> EmitterStats:
        counted = self._pump.counters if self._pump is not None else EmitterStats()
        direct = counted.connected and counted.direct
        return replace(counted, queued=len(self._queue), dropped=self._dropped, direct=direct)


_emitters: "weakref.WeakSet[Emitter]" = weakref.WeakSet()
_parents: list[object] = []


def _after_fork_in_child() -> None:
    """Give every emitter a queue, a boot id and (with its first event) a thread of its own.

    The parent's pump is kept: letting it go would close its event loop, which the parent's kernel still polls.
    """
    for emitter in list(_emitters):
        _parents.append(emitter._pump)
        emitter._begin()


os.register_at_fork(after_in_child=_after_fork_in_child)
