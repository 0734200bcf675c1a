"""This process's sandboxes as its reporter sees them: what the daemon says goes to the keeper, and back.

The keeper freezes and thaws. A thread here says every ``BEAT_S`` that the daemon lives while something is frozen,
hears what became of it, and starts another keeper where one was killed.
"""

import json
import logging
import os
import select
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from controlplane.core.model.text import sanitize

if TYPE_CHECKING:
    from controlplane.emit.tool_reporter import ToolReporter
    from engine_hooks.tools.resources.client import Resources

log = logging.getLogger("penstock")

BEAT_S = 0.3
SILENT_S = 1.5
"""A daemon that was not heard for so long is gone: what is frozen thaws."""
_MOST_WAIT_S = 10.0  # of a tool: then it starts, and fails as it would have
_CHUNK_BYTES = 1 << 16


@dataclass(slots=True)
class _Sandbox:
    program_id: str  # as its agent has it
    frozen: bool = False  # or asked to be
    refused: bool = False  # it could not be frozen: the daemon is not to ask again
    needed_ns: int = 0  # since when a tool waits for it; 0: none does
    awake: threading.Event = field(default_factory=threading.Event)
    told: dict[str, Any] = field(default_factory=dict)  # what it is and holds, as it was reported last


class Sandboxes:
    """Between a reporter and the keeper of ``resources``. No method raises."""

    def __init__(self, reporter: "ToolReporter", resources: "Resources") -> None:
        self._reporter, self._resources = reporter, resources
        self._known: dict[str, _Sandbox] = {}  # by the daemon's name
        self._thread: threading.Thread | None = None
        reporter.sandboxes = self

    def registered(self, program_id: str) -> None:
        """Something of the program's may be frozen."""
        name = sanitize(program_id)
        if name not in self._known:
            self._known[name] = _Sandbox(program_id)
            self._known[name].awake.set()
            self._reporter.sandbox(program_id)
        self.thaw(name)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-sandboxes", daemon=True)
            self._thread.start()

    def ended(self, program_id: str) -> None:
        """It holds nothing any more."""
        if (sandbox := self._known.pop(sanitize(program_id), None)) is not None:
            sandbox.awake.set()
            self._reporter.sandbox(program_id, gone=True)

    # As the reporter has it

    def freeze(self, program_id: str) -> None:
        sandbox = self._known.get(program_id)
        if sandbox is not None and not sandbox.needed_ns and self._hears_daemon():
            sandbox.awake.clear()
            sandbox.frozen = True
            self._resources.tell_keeper({"do": "freeze", "program": sandbox.program_id})

    def thaw(self, program_id: str, *, for_tool: bool = False) -> None:
        sandbox = self._known.get(program_id)
        if sandbox is None or not sandbox.frozen:
            return
        if for_tool and not sandbox.needed_ns:
            sandbox.needed_ns = time.monotonic_ns()
        self._resources.tell_keeper({"do": "thaw", "program": sandbox.program_id})

    def wait(self, program_id: str) -> None:
        if (sandbox := self._known.get(program_id)) is not None:
            sandbox.awake.wait(_MOST_WAIT_S)

    def restate(self) -> None:
        """Another daemon asks: say again what there is."""
        for name, sandbox in list(self._known.items()):
            if not sandbox.refused:
                self._reporter.sandbox(name, **sandbox.told)

    def forget(self) -> None:
        """In a forked child: all of it is the parent's."""
        self._known, self._thread = {}, None

    # The thread

    def _run(self) -> None:
        while True:
            try:
                self._follow(self._resources.live_keeper())
            except Exception as error:  # what is frozen thaws without our word
                log.warning("penstock: sandboxes are not frozen: %r", error)
            time.sleep(BEAT_S)

    def _follow(self, keeper: "subprocess.Popen[bytes] | None") -> None:
        """Speak with one keeper until it ends. None: all that there was has been reclaimed."""
        if keeper is None or keeper.stdout is None:
            return
        for name in list(self._known):
            self.thaw(name)  # of a keeper that died: what it froze is awake by now
        rest = b""
        with keeper.stdout as output:
            while True:
                ready = select.select([output], [], [], BEAT_S)[0]
                if any(each.frozen for each in list(self._known.values())) and self._hears_daemon():
                    self._resources.tell_keeper({"do": "beat"})
                if not ready:
                    continue
                if not (chunk := os.read(output.fileno(), _CHUNK_BYTES)):
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._heard(json.loads(line))

    def _heard(self, outcome: dict[str, Any]) -> None:
        name = sanitize(outcome["program"])
        sandbox = self._known.get(name)
        if sandbox is None:
            return
        if error := outcome.get("error"):
            sandbox.refused = True
            self._reporter.sandbox(name, gone=True)
            log.warning("penstock: %s: its sandbox is not frozen any more: %s", name, error)
            return
        late_ns = 0
        if not outcome["frozen"]:
            if sandbox.needed_ns:
                late_ns = time.monotonic_ns() - sandbox.needed_ns
            sandbox.frozen, sandbox.needed_ns = False, 0
            sandbox.awake.set()
        if sandbox.refused:
            return
        sandbox.told = {each: outcome[each] for each in ("frozen", "awake_bytes", "held_bytes")}
        self._reporter.sandbox(name, late_ns=late_ns, took_ns=outcome["took_ns"], **sandbox.told)

    def _hears_daemon(self) -> bool:
        return self._reporter.daemon_silent_s < SILENT_S
