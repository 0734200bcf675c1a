"""A proxy for MCP over standard input and output: put it before a server's command, and it reports the tool calls.

    python -m engine_hooks.tools.mcp_proxy [--program ID] [--timeout S] -- COMMAND [ARGUMENT ...]

The server speaks one JSON-RPC message per line, and the proxy passes each line on unchanged. Calls belong to the
program in the request's ``_meta``, else to ``--program`` or ``$PENSTOCK_PROGRAM_ID``, else to a program of this
connection. A call that takes longer than ``--timeout`` is answered with an error, and the server is told to stop.
What a server that ends has not answered is answered with an error.
For servers that speak HTTP there is ``engine_hooks.tools.mcp_http_proxy``.
"""

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

from controlplane import clocks
from engine_hooks.tools.hygiene import Hygiene
from engine_hooks.tools.mcp_messages import LINES, Piece, Splitter
from engine_hooks.tools.mcp_session import Owner, Session
from engine_hooks.tools.shared import guard, is_on, reporter

PROGRAM_VARIABLE = "PENSTOCK_PROGRAM_ID"
_CHUNK_BYTES = 1 << 16
_LOOKS_A_TIMEOUT = 10  # so a call is overdue for a tenth of its time at most
_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.05, 1.0
_GRACE_S = 5.0  # for a server that is told to end


class _Pipe:
    """Writes lines to a descriptor, from several threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.RLock()

    def write(self, data: bytes, *, begins: bool = True, ends: bool = True) -> None:
        """Write a line or a part of one, whose thread alone writes until it ends. Raises ``OSError``."""
        if begins:
            self._lock.acquire()
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        finally:
            if ends:
                self._lock.release()


class _Connection:
    """What passes between the client and one run of the server."""

    def __init__(self, server: "subprocess.Popen[bytes]", program: str, timeout_s: float) -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        self._stdin, self._stdout = server.stdin, server.stdout
        self._to_server, self._to_client = _Pipe(server.stdin.fileno()), _Pipe(1)
        self._session = Session(reporter(), Owner(reporter(), program), timeout_s)
        self._lock = threading.Lock()  # a call is answered by the server or fails, not both
        self._over = threading.Event()
        self._timeout_s = timeout_s

    def run(self, *also: int) -> None:
        """Pass on what comes until the server ends; then answer what it has not. Raises ``OSError``."""
        threading.Thread(target=self._feed, daemon=True).start()
        if self._timeout_s:
            threading.Thread(target=self._watch, daemon=True).start()
        last = b""
        for piece in _pieces(self._stdout.fileno(), *also):
            last = self._from_server(piece)
            self._to_client.write(last, begins=piece.first, ends=piece.last)
        with self._lock:
            text = "the MCP server ended before it answered"
            errors = [self._session.fail(request, text) for request in self._session.open]
        if errors and last and not last.endswith(b"\n"):
            self._to_client.write(b"\n")
        for error in errors:
            self._to_client.write(error + b"\n")

    def close(self) -> None:
        self._over.set()
        with self._lock:
            guard.run("MCP end", self._session.close)

    def _from_server(self, piece: Piece) -> bytes:
        with self._lock:
            passed = self._session.piece_from_server(piece)
        return passed if passed is piece.data else _like(piece.data, passed)

    def _feed(self) -> None:
        """Pass on the client's lines until it closes. It may end this process soon after, so report the end now."""
        with contextlib.suppress(OSError):
            for piece in _pieces(0):
                self._from_client(piece)
        with self._lock:
            if not self._session.open:
                guard.run("MCP end", self._session.close)
        with contextlib.suppress(OSError):
            self._stdin.close()

    def _from_client(self, piece: Piece) -> None:
        """Pass on a client's line; if the server reads no more, answer what is in it."""
        passed = None
        if piece.whole:
            with self._lock:
                passed = guard.run("MCP request", self._session.from_client, piece.data, clocks.awake_s())
        data = piece.data if passed is None else _like(piece.data, passed.data)
        try:
            self._to_server.write(data, begins=piece.first, ends=piece.last)
        except OSError:
            for request in passed.requests if passed is not None else ():
                with self._lock:
                    error = self._session.fail(request, "the MCP server reads no more")
                self._to_client.write(_like(b"\n", error))

    def _watch(self) -> None:
        """Answer calls that take too long, until the connection is over."""
        every_s = min(_LONGEST_LOOK_S, max(_SHORTEST_LOOK_S, self._timeout_s / _LOOKS_A_TIMEOUT))
        while not self._over.wait(every_s):
            with self._lock:
                late = guard.run("MCP timeout", self._session.give_up, self._session.open, clocks.awake_s())
            for error, stop in late or ():
                with contextlib.suppress(OSError):
                    self._to_client.write(error + b"\n")
                # In a thread of its own: a server that hangs need not read.
                threading.Thread(target=self._notify, args=(stop + b"\n",), daemon=True).start()

    def _notify(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            self._to_server.write(line)


def _pieces(source: int, *also: int) -> Iterator[Piece]:
    """The lines from a descriptor, and what it leaves without an end.

    A buffered reader that waits in a thread could not be left behind at the end of the process.
    ``also`` are descriptors that wake it, so that a signal's handler runs at once.
    """
    lines = Splitter(LINES)
    while chunk := _read(source, *also):
        yield from lines.feed(chunk)
    if (rest := lines.rest()) or lines.inside:
        yield Piece(rest, not lines.inside, True)


def _read(source: int, *also: int) -> bytes:
    while also and source not in select.select([source, *also], [], [])[0]:
        pass
    return os.read(source, _CHUNK_BYTES)


def _like(line: bytes, passed: bytes) -> bytes:
    """What passes instead of a line, with the line's end."""
    return passed + b"\n" if passed and line.endswith(b"\n") and not passed.endswith(b"\n") else passed


def serve(command: Sequence[str], program: str = "", timeout_s: float = 0.0) -> int:
    """Run the server until it ends; return its exit status."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        connection = _Connection(server, program, timeout_s)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            connection.run(_woken_by_signals())
            return server.wait()
        except BrokenPipeError:
            return 128 + signal.SIGPIPE  # the client has gone
        finally:
            connection.close()
            _end(server)  # where this is what is being ended
            reporter().close()


def _woken_by_signals() -> int:
    """A descriptor that can be read once a signal has come, also one from just before the wait began."""
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    return wake


def _end(server: "subprocess.Popen[bytes]") -> None:
    server.terminate()
    try:
        server.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        server.kill()


def common_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that the proxies for both transports share."""
    parser = argparse.ArgumentParser(
        prog=f"python -m engine_hooks.tools.{module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    own = os.environ.get(PROGRAM_VARIABLE, "")
    parser.add_argument("--program", default=own, help=f"whose calls these are; default: ${PROGRAM_VARIABLE}")
    timeout_s = Hygiene.of().timeout_s
    parser.add_argument(
        "--timeout",
        type=float,
        default=timeout_s,
        help="seconds a call may take; default: $PENSTOCK_TOOL_TIMEOUT_S",
    )
    return parser


def main() -> int:
    """Run the proxy from the command line."""
    parser = common_parser("mcp_proxy", __doc__)
    parser.add_argument("command", nargs="+", help="the server's, after --")
    options = parser.parse_args()
    if not is_on():
        os.execvp(options.command[0], options.command)
    try:
        return serve(options.command, options.program, max(0.0, options.timeout))
    except FileNotFoundError as error:
        parser.error(f"no such command: {error.filename}")
    except PermissionError as error:
        parser.error(f"not a command that may be run: {error.filename}")


if __name__ == "__main__":
    sys.exit(main())
