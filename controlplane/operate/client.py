"""A client of the daemon's control API, which the commands use."""

import itertools
import os
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil

from controlplane.core.model.errors import ConfigError, ControlPlaneError, EngineUnavailable, UnknownProgram
from controlplane.daemon.process.instance_lock import holder
from controlplane.transport.endpoint import ADDRESS_VARIABLE, api_address, control_path, default_state_dir
from controlplane.transport.loopback import channel_options
from controlplane.wire.control import METHODS, Fields
from controlplane.wire.files import MOST_SECRET_BYTES, read_bytes

CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE = (
    "PENSTOCK_API_CA",
    "PENSTOCK_API_CERTIFICATE",
    "PENSTOCK_API_PRIVATE_KEY",
)
_TIMEOUT_S = 10.0
_CONNECTED_WITHIN_S = 3.0
_LOOK_S = 1.0  # twice without an answer: then one that does nothing is frozen
_STOPPED = frozenset({psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP})
_SLEEPS = frozenset({psutil.STATUS_SLEEPING, psutil.STATUS_DISK_SLEEP, psutil.STATUS_IDLE})
_MOST_ROWS = 1000  # of programs in one answer
# Who only listens would hear nothing, for ever, of a daemon that is frozen or whose host is gone.
_STILL_THERE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # what a newer gRPC waits for an answer, and otherwise a minute
    ("grpc.http2.max_pings_without_data", 0),
)
_ITS_OWN = "{details}"  # the daemon says in whole sentences what is wrong
_DAEMON = "the daemon at {address}"
_SENTENCES: dict[grpc.StatusCode, tuple[type[ControlPlaneError], str]] = {
    grpc.StatusCode.NOT_FOUND: (UnknownProgram, _ITS_OWN),
    grpc.StatusCode.INVALID_ARGUMENT: (ConfigError, _ITS_OWN),
    grpc.StatusCode.ABORTED: (EngineUnavailable, _ITS_OWN),
    grpc.StatusCode.CANCELLED: (
        EngineUnavailable,
        f"{_DAEMON} has ended, or is ending; `penstock status --wait 60` waits until one serves again",
    ),
    grpc.StatusCode.UNAVAILABLE: (
        EngineUnavailable,
        f"{_DAEMON} does not answer: {{details}}. One that was just started answers once it has read its stream: "
        "see its log",
    ),
    grpc.StatusCode.DEADLINE_EXCEEDED: (
        EngineUnavailable,
        f"{_DAEMON} does not answer within {{within_s:g}} s: its machine or the network is too busy; try again",
    ),
    grpc.StatusCode.UNAUTHENTICATED: (
        ConfigError,
        f"{_DAEMON} does not know who asks: {{details}}. Set {CERTIFICATE_VARIABLE} and {KEY_VARIABLE}",
    ),
    grpc.StatusCode.PERMISSION_DENIED: (
        ConfigError,
        f"{_DAEMON}, or a proxy before it, does not allow this: {{details}}. See {CERTIFICATE_VARIABLE}",
    ),
    grpc.StatusCode.UNIMPLEMENTED: (
        ControlPlaneError,
        "whatever listens at {address} does not have this: it is another version of the daemon, or another program",
    ),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (
        ControlPlaneError,
        f"{_DAEMON} has more to do, or to tell, than one answer takes: {{details}}. Ask for less, or try again",
    ),
    grpc.StatusCode.INTERNAL: (ControlPlaneError, f"{_DAEMON} failed at this: {{details}}. Its log may say more"),
    grpc.StatusCode.UNKNOWN: (ControlPlaneError, f"{_DAEMON} failed at this: {{details}}. Its log may say more"),
    grpc.StatusCode.DATA_LOSS: (ControlPlaneError, f"the answer of {_DAEMON} was damaged: {{details}}. Try again"),
    grpc.StatusCode.FAILED_PRECONDITION: (ControlPlaneError, f"{_DAEMON} cannot do this now: {{details}}"),
    grpc.StatusCode.ALREADY_EXISTS: (ControlPlaneError, f"{_DAEMON} has this already: {{details}}"),
    grpc.StatusCode.OUT_OF_RANGE: (ConfigError, f"{_DAEMON} does not take this value: {{details}}"),
}
"""What a person is told of each status that gRPC knows."""


class DaemonFrozen(EngineUnavailable):
    """The daemon is there and does nothing; the text says what to do about it."""

    def __init__(self, process: int) -> None:
        super().__init__(
            f"process {process} is the daemon, and is frozen or hangs: `kill -CONT {process}` lets it go on if it "
            f"was stopped; else `kill -KILL {process}` and start it again, which loses nothing"
        )


class ControlClient:
    """A client over one channel. Requests and replies have the fields of ``proto/penstock/v1/control.proto``."""

    def __init__(
        self, channel: grpc.Channel, address: str, process: int = 0, *, within_s: float = _TIMEOUT_S
    ) -> None:
        self.address = address
        self._within_s = within_s
        self._channel = channel
        self._process = process  # the daemon's, if it is on this machine

    def call(self, method: str, **fields: Any) -> Fields:
        """Ask once. Raises ``EngineUnavailable`` if nobody answers, or the error that the daemon answers."""
        wire = METHODS[method]
        ask = self._channel.unary_unary(
            wire.path, request_serializer=wire.encode_request, response_deserializer=wire.decode_reply
        )
        with self._translated_errors():
            answer = ask.future(Fields(**fields), timeout=self._within_s)
            self._wait_for(answer)
            return answer.result()  # type: ignore[no-any-return]

    def _wait_for(self, answer: Any) -> None:
        """Wait as long as the daemon does anything. Raises ``DaemonFrozen`` after a while if it is.

        Of one elsewhere, as long as there is a connection to it.
        """
        used_s = -1.0
        if not self._process:
            wait_s = min(_CONNECTED_WITHIN_S, self._within_s - _LOOK_S)
            try:
                answer.exception(timeout=wait_s)
            except grpc.FutureTimeoutError:
                if not self._is_connected():
                    answer.cancel()
                    what = f"no daemon answers at {self.address}: no connection within {wait_s:g} s"
                    raise EngineUnavailable(
                        f"{what}. See whether it listens there, and whether it speaks TLS"
                    ) from None
        while self._process:
            try:
                answer.exception(timeout=_LOOK_S)
                return
            except grpc.FutureTimeoutError:
                before_s, (used_s, state) = used_s, _of_process(self._process)
                if state == psutil.STATUS_DEAD:
                    return  # the connection tells
                if state in _STOPPED or (state in _SLEEPS and used_s == before_s):
                    answer.cancel()
                    raise DaemonFrozen(self._process) from None

    def _is_connected(self) -> bool:
        """Asked only where a connection takes long: gRPC's watcher trips over a channel that closes meanwhile."""
        states: queue.SimpleQueue[grpc.ChannelConnectivity] = queue.SimpleQueue()
        self._channel.subscribe(states.put)
        try:
            return states.get(timeout=_LOOK_S) is grpc.ChannelConnectivity.READY
        except queue.Empty:
            return False
        finally:
            self._channel.unsubscribe(states.put)

    def programs(self, *, limit: int = 0, **asked: Any) -> Fields:
        """The reply of ``ListPrograms``, of more than one answer holds page by page; ``limit`` 0: all there are.

        Who moves in the queue between two pages is in the list once, or may be missing.
        """
        if 0 < limit <= _MOST_ROWS:
            return self.call("ListPrograms", limit=limit, **asked)
        found: dict[str, Any] = {}
        for page in itertools.count(1):
            reply = self.call("ListPrograms", limit=_MOST_ROWS, page=page, **asked)
            found |= {row.program_id: row for row in reply.programs}
            if len(reply.programs) < _MOST_ROWS or len(found) >= limit > 0:
                break
        reply.programs = list(found.values())[: limit or None]
        return reply

    def watch(self, method: str, **fields: Any) -> Iterator[Fields]:
        """Yield replies as they come, until the daemon goes. Raises as ``call``."""
        wire = METHODS[method]
        ask = self._channel.unary_stream(
            wire.path, request_serializer=wire.encode_request, response_deserializer=wire.decode_reply
        )
        with self._translated_errors():
            yield from ask(Fields(**fields))

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            kind, sentence = _SENTENCES[error.code()]
            details = error.details() or "it does not say why"
            raise kind(sentence.format(address=self.address, details=details, within_s=self._within_s)) from None


def _of_process(process: int) -> tuple[float, str]:
    try:
        found = psutil.Process(process)
        return sum(found.cpu_times()[:2]), found.status()
    except psutil.Error:
        return 0.0, psutil.STATUS_DEAD


@contextmanager
def connect(
    address: str | None, node: str, state_dir: Path | None = None, *, within_s: float = _TIMEOUT_S
) -> Iterator[ControlClient]:
    """Connect to ``address``, else ``$PENSTOCK_API``, else the socket of ``node`` in the state directory.

    Each call waits for an answer for ``within_s``, more than a second.

    The connection uses TLS if ``$PENSTOCK_API_CA`` names the authority that signed the daemon's certificate. The
    client's own certificate and key come from ``$PENSTOCK_API_CERTIFICATE`` and ``$PENSTOCK_API_PRIVATE_KEY``.

    Raises ``EngineUnavailable`` if no daemon serves the node here, ``ConfigError`` for a file that cannot be read
    and a folder that may not be entered.
    """
    chosen = address or os.environ.get(ADDRESS_VARIABLE)
    process = 0
    if not chosen:
        chosen = f"unix:{_socket(node, state_dir)}"
        process = holder(node, state_dir or default_state_dir())
    chosen = api_address(chosen)
    with _channel(chosen) as channel:
        yield ControlClient(channel, chosen, process, within_s=within_s)


def _socket(node: str, state_dir: Path | None) -> Path:
    path = control_path(node, state_dir)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        what = f"no daemon serves node {node!r} here: there is no {path}"
        what += f". Start `penstock up --node {node}`, or name one with --api HOST:PORT"
        raise EngineUnavailable(what) from None
    except PermissionError as error:
        what = f"{path}: cannot reach the daemon's socket: {error.strerror}"
        raise ConfigError(f"{what}. Run this as the daemon's user, or name its address with --api") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", field="state_dir") from error
    return path


def _channel(address: str) -> grpc.Channel:
    options = [*_STILL_THERE, *channel_options(address)]
    authority = _file(CA_VARIABLE)
    if authority is None:
        return grpc.insecure_channel(address, options)
    credentials = grpc.ssl_channel_credentials(authority, _file(KEY_VARIABLE), _file(CERTIFICATE_VARIABLE))
    return grpc.secure_channel(address, credentials, options)


def _file(variable: str) -> bytes | None:
    name = os.environ.get(variable)
    if not name:
        return None
    try:
        return read_bytes(Path(name), MOST_SECRET_BYTES)
    except OSError as error:
        raise ConfigError(f"{variable}: {name}: {error.strerror}") from error
