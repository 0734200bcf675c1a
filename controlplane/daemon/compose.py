"""Puts the parts together: what each command runs."""

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM, Signals

from anyio import CancelScope, to_thread
from anyio.abc import TaskGroup, TaskStatus

from controlplane.config import DEFAULT_HTTP, Config, Resolved, Source, show
from controlplane.core.model.errors import ConfigError
from controlplane.daemon.api.control_api import ControlApi
from controlplane.daemon.api.grpc_server import GrpcServer
from controlplane.daemon.api.http_server import HttpServer
from controlplane.daemon.bus.connection import Bus
from controlplane.daemon.bus.event_socket import EventSocket
from controlplane.daemon.bus.hooks import Hooks
from controlplane.daemon.bus.nats_server import EmbeddedNats
from controlplane.daemon.daemon import Daemon
from controlplane.daemon.observe.decision_log import DecisionLog
from controlplane.daemon.observe.journal import Journal
from controlplane.daemon.observe.regrets import Regrets
from controlplane.daemon.observe.samples import Samples
from controlplane.daemon.observe.telemetry import Telemetry
from controlplane.daemon.otlp.programs import SpanPrograms
from controlplane.daemon.otlp.receiver import SpanReceiver
from controlplane.daemon.otlp.servers import OtlpServers
from controlplane.daemon.process.disk import BackgroundFile, DiskWriter
from controlplane.daemon.process.first_steps import greet
from controlplane.daemon.process.instance_lock import instance_lock
from controlplane.daemon.process.sd_notify import Supervisor
from controlplane.daemon.process.tasks import Tasks
from controlplane.daemon.status.health_watch import HealthWatch
from controlplane.eventloop import on_signals, run, task_group
from controlplane.transport.endpoint import control_path, default_state_dir, socket_path, url_from_env
from controlplane.wire.decisions import log_path
from controlplane.wire.log import Header, LogWriter, create

UMASK = 0o077


def run_daemon(source: Source, *, record: Path | None = None, nats_port: int = 0) -> None:
    """``penstock up``: serve until SIGINT or SIGTERM; SIGHUP reads the configuration again.

    What is written, by the embedded nats-server too, is this user's alone: it names programs, tenants and tools.
    """
    os.umask(UMASK)
    run(_serve, source, record, nats_port)


async def _serve(source: Source, record: Path | None, nats_port: int) -> None:
    resolved = source.read().for_a_daemon()
    config = resolved.config
    state_dir = Path(config.state_dir) if config.state_dir else default_state_dir()
    with instance_lock(config.node, state_dir):
        await _serve_locked(source, resolved, state_dir, record=record, nats_port=nats_port)


async def _serve_locked(
    source: Source, resolved: Resolved, state_dir: Path, *, record: Path | None, nats_port: int
) -> None:
    config = resolved.config
    url = config.nats_url or url_from_env()
    embedded = None if url else EmbeddedNats(config.node, state_dir, nats_port)
    async with task_group() as tasks, shielded_exit_stack() as ending:
        ending.callback(tasks.cancel_scope.cancel)
        if embedded is not None:
            await embedded.start()
            ending.push_async_callback(embedded.stop)
        bus = Bus(embedded.url if embedded else url, config.node, embedded.restart if embedded else None)
        supervised = Tasks()
        if embedded is not None:  # it may die before it was reached
            ending.callback(tasks.start_soon(supervised.keep, "nats-server", embedded.supervise).cancel)
        await bus.connect()
        recorder = ending.enter_context(_recorder(record, config))
        ending.push_async_callback(bus.close)
        socket = EventSocket(Path(config.tool_socket or socket_path(config.node, state_dir)), bus)
        ending.push_async_callback(socket.close)
        state_path = state_dir / config.node / "snapshot.json"
        daemon = Daemon(source, resolved, bus, state_path, recorder, socket, tasks=supervised)
        socket.tasks = supervised
        await attach_services(daemon, state_dir, tasks, ending, partial(greet, config, state_dir))
        await daemon.run()


async def attach_services(
    daemon: Daemon,
    state_dir: Path,
    tasks: TaskGroup,
    ending: contextlib.AsyncExitStack,
    on_open: Callable[[str], None] | None = None,
) -> None:
    """Give the daemon its log of decisions, telemetry, page and control API, and have it obey signals.

    They begin once it is ``ready``, and are taken down as ``ending`` says. ``on_open`` is then told the page's URL,
    which is empty without a page.
    """
    config, regrets, journal = daemon.config, _regrets(daemon), Journal(lambda: daemon.controller)
    if max_bytes := round(config.decision_log_mb * 1e6):
        log = DecisionLog(log_path(config.node, state_dir), max_bytes, journal.controller)
        ending.callback(log.close)
        journal.views.append(log)
    regrets.on_verdict.append(journal.verdict)
    samples = Samples(daemon.status)
    daemon.own.named = samples.named
    journal.views.append(samples)
    ending.callback(tasks.start_soon(daemon.tasks.keep, "samples", samples.keep).cancel)
    daemon.pipeline.recorders += [journal, regrets]  # a decision stands before its verdict
    ending.callback(lambda: regrets.rest(daemon.clock.now_ns()))
    watch = HealthWatch(daemon.own, daemon.status, state_dir)
    ending.callback(tasks.start_soon(daemon.tasks.keep, "health", watch.keep).cancel)
    ending.callback(lambda: watch.look(is_last=daemon.ready.is_set()))
    spans, otlp = _otlp(daemon, tasks, ending)
    telemetry = Telemetry(
        config.telemetry,
        config.node,
        status=daemon.status,
        engines=daemon.engines,
        journal=journal,
        sums=lambda: regrets.sums,
        spans=spans.counts,
    )
    ending.push_async_callback(to_thread.run_sync, telemetry.close)
    is_default = config.http.listen == DEFAULT_HTTP
    page = HttpServer(daemon, config.http.listen, telemetry, regrets.view, journal, samples, is_default=is_default)
    ending.push_async_callback(page.stop)
    server = GrpcServer(ControlApi(daemon, samples), config.api, control_path(config.node, state_dir))
    ending.push_async_callback(server.stop)
    await tasks.start(_obey_signals, daemon)
    opening = partial(_open, daemon, [otlp, server, page], lambda: on_open(page.url) if on_open else None)
    ending.callback(tasks.start_soon(daemon.tasks.keep, "page and control API", opening).cancel)


@contextlib.asynccontextmanager
async def shielded_exit_stack() -> AsyncIterator[contextlib.AsyncExitStack]:
    """What is pushed is done in the end, the last first, and whatever cancels us does not cut it short."""
    stack = contextlib.AsyncExitStack()
    try:
        yield stack
    finally:
        with CancelScope(shield=True):
            await stack.aclose()


def _otlp(daemon: Daemon, tasks: TaskGroup, ending: contextlib.AsyncExitStack) -> tuple[SpanReceiver, OtlpServers]:
    """What takes spans of agents' tool calls, where that is configured."""
    config, programs, hooks = daemon.config.otlp, SpanPrograms(lambda: daemon.controller.ledger), Hooks(daemon.bus)
    receiver = SpanReceiver(programs, hooks.send)
    servers = OtlpServers(receiver, config, lambda: daemon.bus.delivers)
    if (config.http, config.grpc) != ("off", "off"):
        daemon.pipeline.recorders.append(programs)
        ending.callback(tasks.start_soon(daemon.tasks.keep, "spans", hooks.run).cancel)
        ending.push_async_callback(servers.stop)
    return receiver, servers


def _regrets(daemon: Daemon) -> Regrets:
    """They hear of the daemon's decisions as long as those are its own."""
    regrets = Regrets(daemon.own.recompute)

    def change(leads: bool) -> None:
        now_ns = daemon.clock.now_ns()
        if leads:
            regrets.lead(daemon.controller.ledger.programs.by_name.values(), now_ns)
        else:
            regrets.rest(now_ns)

    daemon.on_change.append(change)
    return regrets


async def _open(
    daemon: Daemon, servers: list[OtlpServers | GrpcServer | HttpServer], on_open: Callable[[], None]
) -> None:
    """Operators are let in once the daemon knows what was before it started; from then on its supervisor hears."""
    await daemon.ready.wait()
    try:
        while servers:
            await servers[0].start()
            del servers[0]
            if not servers:
                on_open()
    except ConfigError as error:
        daemon.stop(error)
        return
    await Supervisor().keep_notifying(lambda: daemon.status().line)


@contextlib.contextmanager
def _recorder(path: Path | None, config: Config) -> Iterator[LogWriter | None]:
    if path is None:
        yield None
        return
    created = datetime.now(UTC).isoformat(timespec="seconds")
    header = Header(node=config.node, preset=config.policies.name, created=created, config=show(config))
    try:
        file = create(path)  # here, as who named it is to hear what is wrong with it
    except OSError as error:
        raise ConfigError(f"{path}: cannot write the event log: {error}") from error
    disk = DiskWriter("record")
    try:
        with LogWriter(path, header, BackgroundFile(lambda: file, disk)) as log:
            yield log
    finally:
        disk.settle()


async def _obey_signals(daemon: Daemon, *, task_status: TaskStatus[None]) -> None:
    def obey(number: Signals) -> None:
        if number is not SIGHUP:
            daemon.stop()
            return
        try:
            daemon.reloader.reload("SIGHUP")
        except Exception as error:  # who takes over the new configuration; the next signal is obeyed all the same
            daemon.tasks.failures.note("reload", error, "going on")

    await on_signals(obey, SIGHUP, SIGINT, SIGTERM, task_status=task_status)
