"""The keeper: a process beside the agent's that reclaims what its programs hold when they end or the agent dies.

It is the agent's child, in its own session, with the agent's rights and no others. So it can do what the agent
could, and it outlives a ``kill -9`` of the agent. It reads one JSON object per line on standard input:

    {"do": "register", "program": "run-1", "kind": "process", "handle": "...", "expires_ns": 0}
    {"do": "release", "kind": "process", "handle": "..."}
    {"do": "end", "program": "run-1", "reason": "finished"}
    {"do": "freeze", "program": "run-1"}                       or "thaw"; and "beat": the daemon was heard

What becomes of a freeze or a thaw is a line on standard output (``freezer``). When the input closes or its parent
is gone, the keeper reclaims everything and ends. Each outcome of that is a line of the audit file.
"""

import argparse
import contextlib
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from engine_hooks.tools.resources.freezer import Freezer, thaw_left
from engine_hooks.tools.resources.providers import providers
from engine_hooks.tools.resources.registry import Provider, ProviderError, Registry, Resource

_LOOK_S = 1.0  # whether the parent is still there, where the kernel does not tell
_BUSY_LOOK_S = 0.02
_AT_ONCE = 4
_MOST_END_S = 120.0  # after the parent has gone
_CHUNK_BYTES = 1 << 16


class Audit:
    """The audit file: one line per outcome, appended whole, so that keepers may share it. None: no file."""

    def __init__(self, path: Path | None) -> None:
        self._file: int | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, outcome: str, resource: Resource, *, size_bytes: int = 0, error: str = "") -> None:
        """Note an outcome: registered, released, reclaimed, failed (to be retried) or lost (not to be retried)."""
        if self._file is None:
            return
        line = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "outcome": outcome,
            "program": resource.program_id,
            "kind": resource.kind,
            "handle": resource.handle,
            "reason": resource.reason,
            "attempts": resource.attempts,
            "bytes": size_bytes,
            "error": error,
        }
        os.write(self._file, json.dumps(line).encode() + b"\n")


class Keeper:
    """Does what the lines say. Call ``look`` again and again."""

    def __init__(
        self,
        kinds: dict[str, Provider],
        audit: Audit,
        now_ns: Callable[[], int] = time.monotonic_ns,
        *,
        frozen: Path | None = None,
    ) -> None:
        self.registry = Registry()
        self._kinds = kinds
        self._audit = audit
        self._now_ns = now_ns
        self._workers = ThreadPoolExecutor(_AT_ONCE)
        self._busy: dict[Future[int], Resource] = {}
        self._frozen = frozen  # where is noted what is; None: nothing may be
        self._freezer: Freezer | None = None
        if frozen is not None:
            thaw_left(frozen, kinds)

    def receive(self, line: bytes) -> None:
        """Obey one line of the agent. A line that makes no sense is reported on standard error and ignored."""
        try:
            message = json.loads(line)
            self._obey(message["do"], message)
        except (ValueError, KeyError, TypeError) as error:
            _complain(f"not understood: {line[:200]!r} ({error!r})")

    def _obey(self, what: str, message: dict[str, Any]) -> None:
        registry, now_ns = self.registry, self._now_ns()
        if what == "register":
            kind, handle, program = message["kind"], message["handle"], message["program"]
            if kind not in self._kinds:
                raise ValueError(f"no kind {kind!r}; there are: {', '.join(self._kinds)}")
            freezable = bool(message.get("freezable"))
            registry.register(kind, handle, program, int(message.get("expires_ns", 0)), freezable=freezable)
            if freezable and self._frozen is not None and self._freezer is None:
                self._freezer = Freezer(self._kinds, self._frozen, registry.freezable_of, _tell, self._now_ns)
            self._audit.note("registered", Resource(kind=kind, handle=handle, program_id=program))
        elif what == "release":
            released = registry.release(message["kind"], message["handle"])
            if released is not None:
                self._thaw(released)
                self._audit.note("released", released)
        elif what in ("freeze", "thaw") and self._freezer is not None:
            self._freezer.want(message["program"], what == "freeze")
        elif what == "beat" and self._freezer is not None:
            self._freezer.beat()
        elif what == "end":
            registry.end(
                message["program"], f"its program ended: {message.get('reason') or 'no reason told'}", now_ns
            )
        else:
            raise ValueError(f"unknown request: {what!r}")

    def look(self) -> None:
        """Settle finished attempts, and begin those that are due."""
        if self._freezer is not None:
            self._freezer.look()
        for future in [future for future in self._busy if future.done()]:
            self._settle(self._busy.pop(future), future)
        for resource in self.registry.take_due(self._now_ns()):
            self._busy[self._workers.submit(self._reclaim, resource)] = resource

    def wait_s(self) -> float:
        """Seconds until ``look`` has something to do, if no line comes."""
        if self._busy:
            return _BUSY_LOOK_S
        next_ns, most_s = self.registry.next_ns(), _LOOK_S
        if self._freezer is not None:
            most_s = min(most_s, self._freezer.wait_s())
        return most_s if next_ns is None else min(most_s, max(0, next_ns - self._now_ns()) / NANOSECONDS_PER_SECOND)

    def end_all(self, reason: str) -> None:
        self.registry.end_all(reason, self._now_ns())

    def _reclaim(self, resource: Resource) -> int:
        """Reclaim a resource, in a worker; return the bytes that came free."""
        provider = self._kinds[resource.kind]
        size_bytes = provider.size_bytes(resource.handle)
        self._thaw(resource)
        provider.reclaim(resource.handle)
        return size_bytes

    def _thaw(self, resource: Resource) -> None:
        if self._freezer is not None:
            self._freezer.thaw_now(resource)

    def close(self) -> None:
        if self._freezer is not None:
            self._freezer.close()

    def _settle(self, resource: Resource, future: "Future[int]") -> None:
        error = future.exception()
        will_retry = self.registry.settle(resource, error is None, self._now_ns())
        if error is None:
            self._audit.note("reclaimed", resource, size_bytes=future.result())
            return
        message = str(error) if isinstance(error, ProviderError) else repr(error)
        self._audit.note("failed" if will_retry else "lost", resource, error=message)
        if not will_retry:
            _complain(f"given up: {resource.kind} {resource.handle}: {message}")


def _tell(outcome: dict[str, Any]) -> None:
    """Tell the agent, which may be gone: then everything is reclaimed."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(outcome).encode() + b"\n")


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"penstock keeper: {text}\n")


class _Input:
    """The agent's lines, and a check that the agent still lives."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._rest = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)

    def lines(self, wait_s: float) -> list[bytes] | None:
        """The lines that came within ``wait_s``; None if no more will come."""
        ready = self._selector.select(wait_s)
        if not ready:
            return None if os.getppid() != self._parent else []
        chunk = os.read(0, _CHUNK_BYTES)
        if not chunk:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return lines


def run(keeper: Keeper, source: _Input) -> None:
    """Run until the agent is gone and everything is settled."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    while not stopped and (lines := source.lines(keeper.wait_s())) is not None:
        for line in lines:
            keeper.receive(line)
        keeper.look()
    keeper.end_all("the keeper was told to stop" if stopped else "its agent's process is gone")
    deadline_s = time.monotonic() + _MOST_END_S
    while len(keeper.registry) and time.monotonic() < deadline_s:
        keeper.look()
        time.sleep(_BUSY_LOOK_S)
    keeper.close()


def main() -> int:
    """Run the keeper; only agents start it."""
    parser = argparse.ArgumentParser(description="Takes back what an agent's programs hold.")
    parser.add_argument("--parent", type=int, required=True, help="the agent's process")
    parser.add_argument("--audit", type=Path, help="append each outcome to this file")
    parser.add_argument("--frozen", type=Path, help="note in this folder what is frozen; without it nothing may be")
    options = parser.parse_args()
    os.set_blocking(1, False)  # an agent that does not read must not hold up a thaw
    run(Keeper(providers(), Audit(options.audit), frozen=options.frozen), _Input(options.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
