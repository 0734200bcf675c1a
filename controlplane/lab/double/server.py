"""Runs the engine double: gate, application, driver and emitter on one event loop."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import asdict, replace
from signal import SIGINT, SIGTERM

import anyio
import uvicorn

from controlplane.core.model.errors import ConfigError, ControlPlaneError
from controlplane.core.model.events import Event
from controlplane.emit.emitter import Emitter
from controlplane.eventloop import on_signals, run, task_group
from controlplane.gate import Gate, GateLimits, GateMiddleware, Inbox
from controlplane.lab.double.app import APIS, build_app
from controlplane.lab.double.conversations import Conversations
from controlplane.lab.double.driver import Driver, EngineClock
from controlplane.lab.double.options import MODEL_NAME, DoubleOptions
from controlplane.lab.simulate import engine_of

_ROLE = "engine"
_BACKLOG = 2048
_CLOSE_EMITTER_S = 2.0
_LAST_WORDS_S = 2  # after the aborts, for the replies' last chunks


def serve(options: DoubleOptions) -> None:
    """Run until SIGTERM or SIGINT. Raises ``ControlPlaneError``: a bad option, a port in use."""
    run(run_double, options)


async def run_double(options: DoubleOptions, stop: anyio.Event | None = None) -> None:
    """Run until ``stop`` is set, or a signal where this is the main thread. Raises ``ControlPlaneError``."""
    double = _Double(options)
    with _listen(options.host, options.port) as listener:
        await double.run(listener, stop or anyio.Event())


class _Double:
    """The parts, wired."""

    def __init__(self, options: DoubleOptions) -> None:
        self._options = options
        clock = EngineClock(options.time_scale)
        engine = engine_of(options.hardware).build()
        limits = replace(options.gate or GateLimits(), time_scale=options.time_scale)
        self._gate = Gate(send=self._send, now_ns=clock.now_ns, limits=limits)
        self._driver = Driver(
            engine=engine,
            gate=self._gate,
            send=self._send,
            now_ns=clock.now_ns,
            publisher=lambda: self._emitter.publisher if self._emitter is not None else "",
        )
        self._inbox = Inbox(self._driver.receive, now_ns=clock.now_ns)
        self._emitter = self._make_emitter()
        conversations = Conversations(tokens_per_word=options.tokens_per_word, hand_over=engine.cache.hand_over)
        app = build_app(self._driver, conversations, model=MODEL_NAME, script=options.script, health=self._account)
        self._app = GateMiddleware(app, self._gate, paths=tuple(APIS))

    def _make_emitter(self) -> Emitter | None:
        if self._options.bus is None:
            return None
        return Emitter(
            url=self._options.bus,
            node=self._options.node,
            role=_ROLE,
            on_command=self._inbox.post,
            on_heartbeat=self._inbox.post,
        )

    def _send(self, event: Event, urgent: bool) -> None:
        if self._emitter is not None:
            self._emitter.emit(event, urgent)

    def _account(self) -> object:
        return {
            "kind": "penstock engine double",
            "open_turns": self._driver.open_turns,
            "pool": asdict(self._driver.engine.pool_sample(0)),
            "emitter": asdict(self._emitter.stats) if self._emitter is not None else None,
            "gate": self._gate.health(),
        }

    async def run(self, listener: socket.socket, stop: anyio.Event) -> None:
        self._inbox.attach(asyncio.get_running_loop())
        if self._emitter is not None:
            self._emitter.start()
        self._driver.start()
        server = _server(self._app)

        async def serve() -> None:
            await server.serve(sockets=[listener])
            stop.set()

        async with task_group() as tasks:
            await tasks.start(on_signals, lambda _: stop.set(), SIGINT, SIGTERM)
            try:
                serving = tasks.start_soon(serve)
                if self._options.on_ready is not None:
                    self._options.on_ready(_url(listener))
                await stop.wait()
                await self._wind_up()
                server.should_exit = True
                await serving
            finally:
                self._driver.stop()
                if self._emitter is not None:
                    with anyio.CancelScope(shield=True):
                        await anyio.to_thread.run_sync(self._emitter.close, _CLOSE_EMITTER_S)
                tasks.cancel_scope.cancel()

    async def _wind_up(self) -> None:
        """Take nothing new, let open replies go on for a while, then abort them."""
        self._gate.close()
        if not await self._idle_within(self._options.grace_s):
            self._driver.abort_all()
            await self._idle_within(_LAST_WORDS_S)

    async def _idle_within(self, timeout_s: float) -> bool:
        with anyio.move_on_after(timeout_s):
            await self._driver.idle()
            return True
        return False


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the double winds up before its server does."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: GateMiddleware) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        headers=[("server", "penstock-engine-double")],
        backlog=_BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_LAST_WORDS_S,
    )
    return _Server(config)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ``ControlPlaneError`` where the address cannot be had, with what to do."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"host {host!r} is no address of this machine: {error}", field="host") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ControlPlaneError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port, or 0 for any free one"
        ) from error
    listener.setblocking(False)
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
