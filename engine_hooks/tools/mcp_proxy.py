"""Any MCP client: put this before a server's command, and its tool calls are reported.

    python -m engine_hooks.tools.mcp_proxy [--program ID] -- COMMAND [ARGUMENT ...]

The server speaks over its standard input and output, a JSON-RPC message a line. Every line is passed on as it is,
before it is looked at. A ``tools/call`` is a tool from its request to its answer, which is what the server took; it
belongs to the program that the request's ``_meta`` names (``program_id``, or the client's ``session_id``), else to
``--program``, ``$PENSTOCK_PROGRAM_ID`` or a program of this connection's own, which ends with it.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import IO, Any

from controlplane.emit.tool_reporter import ToolReporter
from engine_hooks.tools.shared import guard, is_on, reporter

PROGRAM_VARIABLE = "PENSTOCK_PROGRAM_ID"
_META = ("program_id", "session_id", "gen_ai.conversation.id")
_END_WAIT_S = 2.0
_CHUNK_BYTES = 1 << 16


class Calls:
    """The calls of one connection: what goes to the server, and what comes back."""

    def __init__(self, to: ToolReporter, program: str = "") -> None:
        self._to = to
        self._own = program or f"mcp-{uuid.uuid4().hex}"
        self._ends = not program  # nobody else will say that it is over
        self._open: dict[str, str] = {}  # the program by the request's id
        self._begun = False

    def to_server(self, line: bytes) -> None:
        """One line of the client."""
        for message in _messages(line):
            if message.get("method") != "tools/call" or "id" not in message:
                continue
            parameters = message.get("params") or {}
            program = self._program_of(parameters.get("_meta") or {})
            call = str(message["id"])
            self._open[call] = program
            self._to.tool_started(program, call, str(parameters.get("name") or "tool"))

    def to_client(self, line: bytes) -> None:
        """One line of the server."""
        for message in _messages(line):
            if "method" in message or "id" not in message:
                continue
            call = str(message["id"])
            program = self._open.pop(call, "")
            if program:
                result = message.get("result")
                failed = "error" in message or (isinstance(result, dict) and bool(result.get("isError")))
                self._to.tool_ended(program, call, ok=not failed)

    def end(self) -> None:
        """The connection is closed."""
        for call, program in list(self._open.items()):
            self._to.tool_ended(program, call, ok=False)
        if self._begun and self._ends:
            self._to.program_ended(self._own, "the MCP connection closed")

    def _program_of(self, meta: dict[str, Any]) -> str:
        for name in _META:
            if isinstance(told := meta.get(name), str) and told:
                return told
        if not self._begun:
            self._begun = True
            self._to.program_started(self._own)
        return self._own


def _messages(line: bytes) -> list[dict[str, Any]]:
    """The JSON-RPC messages of a line: one, or a batch; none where it is something else."""
    try:
        told = json.loads(line)
    except ValueError:
        return []
    return [one for one in (told if isinstance(told, list) else [told]) if isinstance(one, dict)]


def _pass_on(source: int, target: int, look: Callable[[bytes], None], name: str) -> None:
    """Bytes as they come, until the source ends, and each whole line is looked at; a look that fails costs itself.

    Read from the descriptors: a buffered reader that waits in a thread cannot be left behind at the end.
    """
    rest = b""
    with contextlib.suppress(OSError):  # the other side has gone
        while chunk := os.read(source, _CHUNK_BYTES):
            written = 0
            while written < len(chunk):
                written += os.write(target, chunk[written:])
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                guard.run(name, look, line)


def _feed(server: IO[bytes], look: Callable[[bytes], None]) -> None:
    """The client's side, until it closes."""
    _pass_on(0, server.fileno(), look, "MCP request")
    with contextlib.suppress(OSError):
        server.close()


def serve(command: Sequence[str], program: str = "") -> int:
    """Run the server until it ends; its exit status."""
    calls = Calls(reporter(), program)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        threading.Thread(target=_feed, args=(server.stdin, calls.to_server), daemon=True).start()
        _pass_on(server.stdout.fileno(), 1, calls.to_client, "MCP answer")
        status = server.wait()
    guard.run("MCP end", calls.end)
    reporter().close(_END_WAIT_S)
    return status


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m engine_hooks.tools.mcp_proxy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--program", default=os.environ.get(PROGRAM_VARIABLE, ""), help="whose calls these are")
    parser.add_argument("command", nargs="+", help="the server's, after --")
    options = parser.parse_args()
    if not is_on():
        os.execvp(options.command[0], options.command)
    try:
        return serve(options.command, options.program)
    except FileNotFoundError as error:
        parser.error(f"no such command: {error.filename}")


if __name__ == "__main__":
    sys.exit(main())
