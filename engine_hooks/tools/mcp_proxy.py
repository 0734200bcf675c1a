"""A proxy for MCP over standard input and output: put it before a server's command, and it reports the tool calls.

    python -m engine_hooks.tools.mcp_proxy [--program ID] [--timeout S] -- COMMAND [ARGUMENT ...]

The server speaks one JSON-RPC message per line, and the proxy passes each line on unchanged. Calls belong to the
program in the request's ``_meta``, else to ``--program`` or ``$PENSTOCK_PROGRAM_ID``, else to a program of this
connection. A call that takes longer than ``--timeout`` is answered with an error, and the server is told to stop.
For servers that speak HTTP there is ``engine_hooks.tools.mcp_http_proxy``.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import IO

from engine_hooks.tools.hygiene import Hygiene
from engine_hooks.tools.mcp_calls import Calls
from engine_hooks.tools.shared import guard, is_on, reporter

PROGRAM_VARIABLE = "PENSTOCK_PROGRAM_ID"
_CHUNK_BYTES = 1 << 16
_LOOKS_A_TIMEOUT = 10  # so a call is overdue for a tenth of its time at most
_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.05, 1.0


class _Pipe:
    """Writes whole lines to a descriptor, from several threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Write one line. Raises ``OSError`` if the other side has gone."""
        with self._lock:
            written = 0
            while written < len(data):
                written += os.write(self._descriptor, data[written:])


def _pass_on(source: int, target: _Pipe, wanted: Callable[[bytes], object], name: str) -> None:
    """Pass on each line unless ``wanted`` returns False, until the source ends; if it fails, the line passes.

    It reads from the descriptor, since a buffered reader that waits in a thread cannot be left behind at the end.
    """
    rest = b""
    with contextlib.suppress(OSError):  # the other side has gone
        while chunk := os.read(source, _CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if guard.run(name, wanted, line) is not False:
                    target.write(line + b"\n")
        if rest:
            target.write(rest)


def _feed(server: IO[bytes], to_server: _Pipe, calls: Calls) -> None:
    """Pass on the client's lines until it closes. It may end this process soon after, so report the end now."""
    _pass_on(0, to_server, calls.to_server, "MCP request")
    guard.run("MCP end", calls.end_if_idle)
    with contextlib.suppress(OSError):
        server.close()


def _end_overdue(calls: Calls, to_client: _Pipe, to_server: _Pipe, every_s: float, over: threading.Event) -> None:
    """Answer calls that take too long, until the connection is over."""
    while not over.wait(every_s):
        for one in guard.run("MCP timeout", calls.overdue) or ():
            with contextlib.suppress(OSError):
                to_client.write(one.to_client)
                to_server.write(one.to_server)


def serve(command: Sequence[str], program: str = "", timeout_s: float = 0.0) -> int:
    """Run the server until it ends; return its exit status."""
    calls = Calls(reporter(), program, timeout_s=timeout_s)
    over = threading.Event()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        to_server, to_client = _Pipe(server.stdin.fileno()), _Pipe(1)
        threading.Thread(target=_feed, args=(server.stdin, to_server, calls), daemon=True).start()
        if timeout_s:
            every_s = min(_LONGEST_LOOK_S, max(_SHORTEST_LOOK_S, timeout_s / _LOOKS_A_TIMEOUT))
            watching = (calls, to_client, to_server, every_s, over)
            threading.Thread(target=_end_overdue, args=watching, daemon=True).start()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            _pass_on(server.stdout.fileno(), to_client, calls.to_client, "MCP answer")
            return server.wait()
        finally:
            server.terminate()  # where this is what is being ended
            over.set()
            guard.run("MCP end", calls.end)
            reporter().close()


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options that the proxies for both transports share."""
    own = os.environ.get(PROGRAM_VARIABLE, "")
    parser.add_argument("--program", default=own, help=f"whose calls these are; default: ${PROGRAM_VARIABLE}")
    timeout_s = Hygiene.of().timeout_s
    parser.add_argument(
        "--timeout",
        type=float,
        default=timeout_s,
        help="seconds a call may take; default: $PENSTOCK_TOOL_TIMEOUT_S",
    )


def main() -> int:
    """Run the proxy from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m engine_hooks.tools.mcp_proxy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_common(parser)
    parser.add_argument("command", nargs="+", help="the server's, after --")
    options = parser.parse_args()
    if not is_on():
        os.execvp(options.command[0], options.command)
    try:
        return serve(options.command, options.program, max(0.0, options.timeout))
    except FileNotFoundError as error:
        parser.error(f"no such command: {error.filename}")


if __name__ == "__main__":
    sys.exit(main())
