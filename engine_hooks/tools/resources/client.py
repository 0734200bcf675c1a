"""Register what this process's programs hold on the tool host with a keeper, which reclaims it.

    from engine_hooks.tools.resources.client import resources

    folder = resources().make_workspace("run-1")
    shell = resources().start_process("run-1", ["bash"], cwd=folder, stdin=subprocess.PIPE)

What is ``freezable`` may be frozen while the program waits, where the daemon's operator has switched that on:
nothing in it may be needed before the program's next tool, and the agent itself must not be in it.

All of it goes when the program ends (``program_ended`` of this process's reporter), after ``ttl_s``, or when this
process is gone for whatever reason. Nothing here waits for the reclaiming.
"""

import functools
import json
import logging
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controlplane.core.model.types import seconds
from controlplane.transport.endpoint import default_state_dir
from engine_hooks.tools.resources.cgroups import cgroup_handle
from engine_hooks.tools.resources.providers import COOKIE_VARIABLE, process_handle
from engine_hooks.tools.resources.sandboxes import Sandboxes
from engine_hooks.tools.resources.workspaces import workspace_handle
from engine_hooks.tools.shared import reporter

log = logging.getLogger("penstock")

AUDIT_NAME, FROZEN_NAME = "resources.jsonl", "frozen"
_ROOT = Path(__file__).resolve().parents[3]  # where this package was found, by whatever way


class Resources:
    """The resources of one process's programs. Any thread may call; the keeper starts with the first resource.

    :param audit: the file to which the keeper appends each outcome; None: none is written.
    :param frozen: the folder in which it notes what is frozen; None: nothing ever is.
    """

    def __init__(self, audit: Path | None = None, frozen: Path | None = None) -> None:
        self._audit, self._frozen = audit, frozen
        self._held: dict[tuple[str, str], dict[str, Any]] = {}  # what a new keeper would have to know
        self._keeper: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self.sandboxes: Sandboxes | None = None
        _made.add(self)

    # Registering

    def make_workspace(self, program_id: str, *, within: Path | None = None, ttl_s: float = 0.0) -> Path:
        """Make a new folder for the program. It lives for ``ttl_s`` at most; 0: as long as the program."""
        path = Path(tempfile.mkdtemp(prefix="penstock-", dir=within))
        self._add(program_id, "workspace", workspace_handle(path, made=True), ttl_s)
        return path

    def add_workspace(self, program_id: str, path: Path, *, ttl_s: float = 0.0) -> str:
        """Register a folder to be deleted; return its handle. Raises ``ProviderError`` if it may not be."""
        return self._add(program_id, "workspace", workspace_handle(path), ttl_s)

    def start_process(
        self,
        program_id: str,
        command: Sequence[str],
        *,
        ttl_s: float = 0.0,
        freezable: bool = False,
        **options: Any,
    ) -> "subprocess.Popen[Any]":
        """Start a process as ``subprocess.Popen`` does, in its own session; whatever it starts goes with it."""
        cookie = uuid.uuid4().hex
        environment = {**(options.pop("env", None) or os.environ), COOKIE_VARIABLE: cookie}
        process = subprocess.Popen(command, env=environment, start_new_session=True, **options)
        self._add(program_id, "process", process_handle(process.pid, cookie), ttl_s, freezable)
        return process

    def add_process(self, program_id: str, pid: int, *, ttl_s: float = 0.0, freezable: bool = False) -> str:
        """Register a running process with its children, and its session if it leads one; return its handle."""
        return self._add(program_id, "process", process_handle(pid), ttl_s, freezable)

    def add_container(
        self, program_id: str, container_id: str, *, ttl_s: float = 0.0, freezable: bool = False
    ) -> str:
        """Register a Docker or Podman container, which will be removed with its volumes; return its handle."""
        return self._add(program_id, "container", container_id, ttl_s, freezable)

    def add_cgroup(self, program_id: str, path: Path, *, ttl_s: float = 0.0, freezable: bool = False) -> str:
        """Register a cgroup (v2): all in it is killed and it is removed; return its handle."""
        return self._add(program_id, "cgroup", cgroup_handle(path), ttl_s, freezable)

    def release(self, kind: str, handle: str) -> None:
        """Forget a resource that you have disposed of yourself, or that is to stay."""
        with self._lock:
            if self._held.pop((kind, handle), None) is not None:
                self._send({"do": "release", "kind": kind, "handle": handle})

    def end(self, program_id: str, reason: str = "") -> None:
        """End a program: everything that it holds goes."""
        if self.sandboxes is not None:
            self.sandboxes.ended(program_id)
        with self._lock:
            mine = [key for key, message in self._held.items() if message["program"] == program_id]
            for key in mine:
                del self._held[key]
            if mine:
                self._send({"do": "end", "program": program_id, "reason": reason})

    def close(self, timeout_s: float = 0.0) -> None:
        """Reclaim everything, for tests and orderly ends; the end of this process does the same."""
        with self._lock:
            keeper, self._keeper = self._keeper, None
            self._held.clear()
        if keeper is not None:
            self._hang_up(keeper)
            if timeout_s:
                keeper.wait(timeout_s)

    # The keeper

    def tell_keeper(self, message: dict[str, Any]) -> None:
        """Send a line about what is registered, if anything is."""
        with self._lock:
            if self._held:
                self._send(message)

    def live_keeper(self) -> "subprocess.Popen[bytes] | None":
        """The keeper, another one where it is gone; None while nothing is held."""
        self.tell_keeper({"do": "beat"})
        return self._keeper

    def _add(self, program_id: str, kind: str, handle: str, ttl_s: float, freezable: bool = False) -> str:
        expires_ns = time.monotonic_ns() + seconds(ttl_s) if ttl_s > 0 else 0
        message = {
            "do": "register",
            "program": program_id,
            "kind": kind,
            "handle": handle,
            "expires_ns": expires_ns,
            "freezable": freezable,
        }
        with self._lock:
            self._held[kind, handle] = message
            self._send(message)
        if freezable and self.sandboxes is not None:
            self.sandboxes.registered(program_id)
        return handle

    def _send(self, message: dict[str, Any]) -> None:
        """Send one line. A keeper that is gone or does not read is replaced, and gets everything again."""
        lines, problem = [message], OSError()
        for _ in range(2):
            try:
                if self._keeper is None or self._keeper.poll() is not None:
                    self._drop_keeper()
                    self._keeper = self._start()
                    lines = [*(known for known in self._held.values() if known is not message), message]
                for line in lines:
                    _write(self._keeper, json.dumps(line).encode() + b"\n")
            except OSError as error:
                problem = error
                self._drop_keeper()
            else:
                return
        log.warning("penstock: no keeper: %s; what programs hold stays when this process dies", problem)

    def _drop_keeper(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self._hang_up(keeper)
            keeper.kill()
            keeper.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-P", "-m", "engine_hooks.tools.resources.keeper", "--parent", str(os.getpid())]
        if self._frozen is not None:
            command += ["--frozen", str(self._frozen)]
        if self._audit is not None:
            command += ["--audit", str(self._audit)]
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
        keeper = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert keeper.stdin is not None
        os.set_blocking(keeper.stdin.fileno(), False)
        return keeper

    def _hang_up(self, keeper: "subprocess.Popen[bytes]") -> None:
        if keeper.stdin is not None:
            keeper.stdin.close()
        if keeper.stdout is not None and self.sandboxes is None:  # else whoever reads it closes it
            keeper.stdout.close()

    def _forked(self) -> None:
        """Forget everything in a forked child: what the parent's programs hold is the parent's."""
        keeper, self._keeper = self._keeper, None
        self._held = {}
        self._lock = threading.Lock()
        if self.sandboxes is not None:
            self.sandboxes.forget()
        if keeper is not None:
            self._hang_up(keeper)  # else the keeper would not see the parent go
            _parents_keepers.append(keeper)


def _write(keeper: "subprocess.Popen[bytes]", line: bytes) -> None:
    """Write a whole line without waiting: a pipe takes it at once or not at all. Raises ``OSError``."""
    assert keeper.stdin is not None
    if len(line) > select.PIPE_BUF:
        raise OSError(f"a handle of {len(line)} bytes")
    os.write(keeper.stdin.fileno(), line)


_made: "weakref.WeakSet[Resources]" = weakref.WeakSet()
_parents_keepers: list[object] = []  # kept, since letting a Popen go asks about a child that is not ours


@functools.cache
def resources() -> Resources:
    """This process's resources; outcomes go to ``resources.jsonl`` in the state directory."""
    state = default_state_dir()
    made = Resources(state / AUDIT_NAME, state / FROZEN_NAME)
    made.sandboxes = Sandboxes(reporter(), made)
    reporter().on_ended.append(made.end)
    return made


def _after_fork_in_child() -> None:
    for each in list(_made):
        each._forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
