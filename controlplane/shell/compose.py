"""Puts the parts together: what each command runs."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM, Signals

from anyio import CancelScope, to_thread
from anyio.abc import TaskGroup, TaskStatus

from controlplane.config import DEFAULT_HTTP, Config, Resolved, Source, show
from controlplane.core.errors import ConfigError
from controlplane.eventloop import on_signals, run, task_group
from controlplane.shell.bus import Bus
from controlplane.shell.control_api import ControlApi
from controlplane.shell.daemon import Daemon
from controlplane.shell.decision_log import DecisionLog
from controlplane.shell.disk import DiskWriter, FileBehind
from controlplane.shell.event_socket import EventSocket
from controlplane.shell.grpc_server import GrpcServer
from controlplane.shell.health_watch import HealthWatch
from controlplane.shell.http_server import HttpServer
from controlplane.shell.nats_server import EmbeddedNats
from controlplane.shell.only_one import only_one
from controlplane.shell.page_orders import PageOrders
from controlplane.shell.regrets import Regrets
from controlplane.shell.supervisor import Supervisor
from controlplane.shell.telemetry import Telemetry
from controlplane.shell.timelines import Timelines
from controlplane.shell.what_if import Recorded, WhatIf
from controlplane.wire.decisions import log_path
from controlplane.wire.endpoint import control_path, default_state_dir, socket_path, told_url
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
    with only_one(config.node, state_dir):
        await _serve_alone(source, resolved, state_dir, record=record, nats_port=nats_port)


async def _serve_alone(
    source: Source, resolved: Resolved, state_dir: Path, *, record: Path | None, nats_port: int
) -> None:
    config = resolved.config
    url = config.nats_url or told_url()
    embedded = None if url else EmbeddedNats(config.node, state_dir, nats_port)
    async with task_group() as tasks, ending_stack() as ending:
        ending.callback(tasks.cancel_scope.cancel)
        if embedded is not None:
            await embedded.start()
            ending.push_async_callback(embedded.stop)
        bus = Bus(embedded.url if embedded else url, config.node, embedded.restart if embedded else None)
        await bus.connect()
        recorder = ending.enter_context(_recorder(record, config))
        ending.push_async_callback(bus.close)
        socket = EventSocket(Path(config.tool_socket or socket_path(config.node, state_dir)), bus)
        ending.push_async_callback(socket.close)
        state_path = state_dir / config.node / "snapshot.json"
        daemon = Daemon(source, resolved, bus, state_path, recorder, socket)
        socket.tasks = daemon.tasks
        if embedded is not None:
            ending.callback(tasks.start_soon(daemon.tasks.keep, "nats-server", embedded.supervise).cancel)
        await surround(daemon, state_dir, tasks, ending)
        await daemon.run()


async def surround(daemon: Daemon, state_dir: Path, tasks: TaskGroup, ending: contextlib.AsyncExitStack) -> None:
    """Give the daemon its log of decisions, telemetry, page and control API, and have it obey signals.

    They begin once it is ``ready``, and are taken down as ``ending`` says.
    """
    config, regrets = daemon.config, _regrets(daemon)
    if log := _decision_log(config, state_dir, daemon):
        ending.callback(log.close)
        regrets.heard.append(log.verdict)
        daemon.advice.heard.append(log.setting)
    timelines = Timelines(lambda: daemon.controller)
    if config.http.listen != "off":
        daemon.pump.recorders.append(timelines)
        regrets.heard.append(timelines.verdict)
    daemon.pump.recorders.append(regrets)  # behind the log: a decision stands before its verdict
    ending.callback(lambda: regrets.rest(daemon.clock.now_ns()))
    watch = HealthWatch(daemon.own, daemon.status, state_dir)
    ending.callback(tasks.start_soon(daemon.tasks.keep, "health", watch.keep).cancel)
    ending.callback(lambda: watch.look(is_last=daemon.ready.is_set()))
    telemetry = Telemetry(
        config.telemetry,
        config.node,
        status=daemon.status,
        engines=daemon.engines,
        controller=lambda: daemon.controller,
        sums=lambda: regrets.sums,
    )
    ending.push_async_callback(to_thread.run_sync, telemetry.close)
    daemon.pump.recorders += telemetry.recorders
    is_default = config.http.listen == DEFAULT_HTTP
    what_if = WhatIf(
        lambda: Recorded(record=daemon.recorder, stretch=daemon.estimates.stretch),
        lambda: daemon.reloader.resolved,
        daemon.clock.now_ns,
        daemon.replayer,
    )
    orders = PageOrders(what_if)
    page = HttpServer(daemon, config.http.listen, telemetry, regrets.view, timelines, orders, is_default=is_default)
    ending.push_async_callback(page.stop)
    server = GrpcServer(ControlApi(daemon, page), config.api, control_path(config.node, state_dir))
    ending.push_async_callback(server.stop)
    await tasks.start(_obey_signals, daemon)
    opening = partial(_open, daemon, [server, page])
    for name, work in (("what-if", what_if.keep), ("page and control API", opening)):
        ending.callback(tasks.start_soon(daemon.tasks.keep, name, work).cancel)


@contextlib.asynccontextmanager
async def ending_stack() -> AsyncIterator[contextlib.AsyncExitStack]:
    """What is pushed is done in the end, the last first, and whatever cancels us does not cut it short."""
    stack = contextlib.AsyncExitStack()
    try:
        yield stack
    finally:
        with CancelScope(shield=True):
            await stack.aclose()


def _decision_log(config: Config, state_dir: Path, daemon: Daemon) -> DecisionLog | None:
    max_bytes = round(config.decision_log_mb * 1e6)
    if not max_bytes:
        return None
    log = DecisionLog(log_path(config.node, state_dir), max_bytes, lambda: daemon.controller)
    daemon.pump.recorders.append(log)
    return log


def _regrets(daemon: Daemon) -> Regrets:
    """They hear of the daemon's decisions as long as those are its own."""
    regrets = Regrets()

    def change(leads: bool) -> None:
        now_ns = daemon.clock.now_ns()
        if leads:
            regrets.lead(daemon.controller.ledger.programs.by_name.values(), now_ns)
        else:
            regrets.rest(now_ns)

    daemon.on_change.append(change)
    return regrets


async def _open(daemon: Daemon, servers: list[GrpcServer | HttpServer]) -> None:
    """Operators are let in once the daemon knows what was before it started; from then on its supervisor hears."""
    await daemon.ready.wait()
    try:
        while servers:
            await servers[0].start()
            del servers[0]
    except ConfigError as error:
        daemon.stop(error)
        return
    await Supervisor().keep_telling(lambda: daemon.status().line)


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
        with LogWriter(path, header, FileBehind(lambda: file, disk)) as log:
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
