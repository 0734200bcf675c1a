"""``penstock gate``: a gate outside any server, on its node. This process keeps the others alive:

Envoy, which clients talk to; a picker, which says when each turn goes (``outside_picker``); and a daemon, where the
node has none. Whichever dies is started again. Without a picker Envoy lets everything pass, without a daemon the
picker does.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from signal import SIG_IGN, SIGHUP, SIGINT, SIGTERM, Signals, getsignal
from subprocess import DEVNULL

import aiohttp
import msgspec
from anyio import CancelScope, move_on_after, open_process, sleep
from anyio.abc import Process

from controlplane import clocks
from controlplane.core.model.errors import ConfigError, EngineUnavailable
from controlplane.daemon.process.exec_bound import ends_with_us
from controlplane.daemon.process.host_probe import usable_cpus
from controlplane.daemon.process.installed import last_line
from controlplane.daemon.process.instance_lock import holder, only_holder
from controlplane.daemon.process.logs import logger
from controlplane.daemon.process.ports import free_ports
from controlplane.daemon.process.sd_notify import Supervisor
from controlplane.eventloop import on_signals, run, task_group
from controlplane.files import replace_file
from controlplane.fleet.envoy import DataPlane, binary, bootstrap, write_endpoints
from controlplane.fleet.roster import Engine, host_and_port
from controlplane.fleet.upstream import Upstream, ip_and_port, upstream_of
from controlplane.gate.limits import GateLimits
from controlplane.gate.repairs import repairs_in
from controlplane.gate.requests import HEALTH_PATH
from controlplane.gate.variables import limit_values
from controlplane.transport.endpoint import MOST_SOCKET_PATH_BYTES, default_state_dir, url_from_env
from controlplane.transport.nats_url import connection_of
from controlplane.transport.subjects import check_name

_UMASK = 0o077
_ENDS_WITHIN_S = 10.0
_AT_ONCE_S = 5.0  # one that ends so soon after its first start would do so again
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_LOOK_S = 2.0
_LOOKS = 3  # after which Envoy speaks of this picker, not of the one before: it asks each second, three times
_MISSED_LOOKS = 10  # of a machine so busy that a picker is late
_DRAINS_WITHIN_S, _DRAIN_LOOK_S = 20.0, 0.2  # Kubernetes kills after 30 s, and our parts have 10 s of these
_BACK_WITHIN_S = 30.0  # as long as gates wait for a daemon before they let turns in
_READY_WITHIN_S = 60.0  # of a busy machine
_MOST_WORKERS = 4  # of Envoy: its default is one for each CPU of a node
_log = logger("gate")


class GateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one gate outside is told; the bus it has from the environment, as its URL may hold a password."""

    upstream: str
    listen: str = "127.0.0.1:8080"
    node: str = "local"
    state_dir: str = ""
    pool_tokens: int = 0
    log_level: str = "info"
    slot_save_path: str = ""
    slot_save_bytes: int = 0
    picker: str = ""  # where Envoy asks it

    @property
    def state_path(self) -> Path:
        return Path(self.state_dir) if self.state_dir else default_state_dir()


class Child:
    """A process that is there again whenever it ends. Its log is ours where it has no file of its own.

    ``another`` tells whether one that is not ours does its work; then ours is started after that one has been away
    for half a minute.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path | None = None, another: Callable[[], object] = bool
    ) -> None:
        self._name, self._command, self._log_path = name, [*ends_with_us(), *command], log
        self._another = another
        self._runs = 0
        self.process: Process | None = None  # that runs now

    async def keep(self) -> None:
        """Until cancelled; then it is ended. Raises ``EngineUnavailable`` where its first start fails."""
        pause_s, is_needed = _FIRST_PAUSE_S, not self._another()
        while True:
            await self._while_another_does()
            began_s, process = clocks.awake_s(), await self._begin()
            self.process = process
            try:
                status = await process.wait()
            finally:
                self.process = None
                await _end(process)
            lived_s, self._runs = clocks.awake_s() - began_s, self._runs + 1
            failed = self._runs == 1 and lived_s < _AT_ONCE_S and status > 0
            if failed and is_needed and not self._another():
                raise EngineUnavailable(f"{self._name} ended at once, with status {status}{self._last_words()}")
            pause_s = _FIRST_PAUSE_S if lived_s > _AT_ONCE_S else min(_LONGEST_PAUSE_S, 2 * pause_s)
            _log.warning("ended", process=self._name, status=status, action=f"starting it again in {pause_s:g} s")
            await sleep(pause_s)

    async def _while_another_does(self) -> None:
        """And for a while after: whoever keeps that one is to have it back first, and not find ours."""
        away_s = 0.0 if self._another() else _BACK_WITHIN_S
        while away_s < _BACK_WITHIN_S:
            await sleep(_LOOK_S)
            away_s = 0.0 if self._another() else away_s + _LOOK_S

    async def _begin(self) -> Process:
        if self._log_path is None:
            return await open_process(
                self._command, stdin=DEVNULL, stdout=None, stderr=None, start_new_session=True
            )
        with self._log_path.open("wb") as log:
            return await open_process(self._command, stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _last_words(self) -> str:
        if self._log_path is None:
            return "; it has said why above"
        with suppress(OSError):
            return f"; it says: {last_line(self._log_path)} ({self._log_path})"
        return ""


async def _end(process: Process) -> None:
    with CancelScope(shield=True), suppress(ProcessLookupError):
        if process.returncode is None:
            process.terminate()
            with move_on_after(_ENDS_WITHIN_S):
                await process.wait()
                return
            process.kill()
            await process.wait()


class EnvoyAdmin:
    """Envoy's own pages, at ``address``, ``HOST:PORT`` or ``unix:PATH``."""

    def __init__(self, address: str) -> None:
        path = address.removeprefix("unix:")
        self._url = "http://envoy" if path != address else f"http://{address}"
        self._socket = path if path != address else ""

    async def ask(self, method: str, page: str) -> str:
        """What it answers; empty where it does not."""
        connector = aiohttp.UnixConnector(self._socket) if self._socket else aiohttp.TCPConnector()
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(_LOOK_S)) as http:
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with http.request(method, f"{self._url}{page}") as answer:
                    return await answer.text()
        return ""

    async def figure(self, name: str) -> int | None:
        """A counter or gauge; None where it tells none."""
        value = (await self.ask("GET", f"/stats?filter=^{name}$")).rpartition(":")[2].strip()
        return int(value) if value.isdecimal() else None


async def _replace_frozen(picker: Child, envoy: EnvoyAdmin) -> None:
    """Kill a picker that Envoy hears no more, though it did: as a whole it is stopped, and its watchdog with it."""
    known, heard, missed = picker.process, 0, 0
    while True:
        await sleep(_LOOK_S)
        if picker.process is not known:
            known, heard, missed = picker.process, 0, 0
        healthy = await envoy.figure("cluster.pickers.health_check.healthy")
        if healthy:
            heard, missed = heard + 1, 0
        elif healthy == 0 and heard >= _LOOKS:
            missed += 1
        if known is not None and missed >= _MISSED_LOOKS:
            _log.warning("the picker does not answer", action="killing it: another takes its place")
            with suppress(ProcessLookupError):
                known.kill()
            missed = 0


async def _drain(envoy: EnvoyAdmin, end: Callable[[], object]) -> None:
    """Take no new connections, let what runs come to its end, if that is soon, and then ``end``."""
    _log.info("draining", within_s=_DRAINS_WITHIN_S)
    await envoy.ask("POST", "/healthcheck/fail")  # so that connections are closed with their next answer
    await envoy.ask("POST", "/drain_listeners")
    with move_on_after(_DRAINS_WITHIN_S):
        while await envoy.figure("http.front.downstream_rq_active"):  # noqa: ASYNC110  only it knows
            await sleep(_DRAIN_LOOK_S)
    end()


def run_gate(options: GateOptions, daemon: Sequence[str]) -> None:
    """Serve until SIGINT or SIGTERM. ``daemon``: the command that starts one, where the node has none."""
    # Said here, not by the picker whenever it starts.
    GateLimits(**limit_values(os.environ))
    repairs_in(os.environ)
    check_name(options.node, field="--node")
    if (url := url_from_env()) and not url.startswith("unix:"):  # which is the daemon's socket
        connection_of(url)
    os.umask(_UMASK)
    run(_serve, options, list(daemon))


async def _serve(options: GateOptions, daemon: list[str]) -> None:
    upstream = upstream_of(options.upstream)
    options = msgspec.structs.replace(options, listen=_place_to_listen(options.listen, upstream))
    folder = options.state_path / options.node / f"gate-{upstream.port}"
    with only_holder(
        folder / "gate.lock", f"a gate of node {options.node!r} stands before port {upstream.port} already"
    ):
        await _serve_alone(options, upstream, folder, daemon)


async def _serve_alone(options: GateOptions, upstream: Upstream, folder: Path, daemon: list[str]) -> None:
    """Two in one folder would take each other's picker."""
    try:
        picker, admin_at = _address(folder / "picker.sock"), _address(folder / "envoy.sock")
        engine = Engine(place=upstream.place(options.node), address=upstream.address)
        envoy, admin = _envoy(options, engine, folder, picker, admin_at), EnvoyAdmin(admin_at)
    except OSError as error:
        raise ConfigError(f"state_dir: cannot write in {folder}: {error.strerror or error}") from None
    told = msgspec.json.encode(msgspec.structs.replace(options, picker=picker)).decode()
    asked = Child("the picker", [sys.executable, "-m", "controlplane.fleet.outside_picker", told])
    works = [asked.keep, Child("Envoy", envoy, folder / "envoy.log").keep]
    another = partial(holder, options.node, options.state_path)
    if not url_from_env():
        works.insert(0, Child("the daemon", daemon, another=another).keep)
    if (url_from_env() or another()) and not {"--config", "--preset"}.isdisjoint(daemon):
        _log.warning("there is a daemon", action="leaving --config and --preset to that one")
    async with task_group() as tasks:
        for work in works:
            tasks.start_soon(work)
        tasks.start_soon(_tell, options, upstream.address)
        tasks.start_soon(_replace_frozen, asked, admin)
        told_to_end = 0

        def end(number: Signals) -> None:
            """A second signal is impatience, and so are Ctrl-C and a terminal that is closed."""
            nonlocal told_to_end
            told_to_end += 1
            if number == SIGTERM and told_to_end == 1:
                tasks.start_soon(_drain, admin, tasks.cancel_scope.cancel)
            else:
                tasks.cancel_scope.cancel()

        hangup = [] if getsignal(SIGHUP) is SIG_IGN else [SIGHUP]  # as nohup has it
        await on_signals(end, SIGINT, SIGTERM, *hangup)


def _envoy(options: GateOptions, engine: Engine, folder: Path, picker: str, admin: str) -> list[str]:
    """The command that runs it. Raises ``OSError``, and ``ConfigError`` for what cannot be."""
    endpoints, config = folder / "eds.json", folder / "envoy.yaml"
    plane = DataPlane(
        pickers=(picker,),
        endpoints=endpoints,
        name=f"{options.node}-gate",
        listen=options.listen,
        admin=admin,
        health_path="",  # with one server there is nobody else to ask: what it answers is the answer
        watches_bodies=True,
    )
    write_endpoints(endpoints, [engine])
    replace_file(config, [bootstrap(plane).encode()])
    workers = str(max(1, min(_MOST_WORKERS, round(usable_cpus()))))
    command = [str(binary()), "--config-path", str(config), "--log-level", "warning"]
    return [*command, "--concurrency", workers, "--disable-hot-restart"]


def _address(path: Path) -> str:
    """Of a socket there, which nobody else here reaches; of a port where the kernel takes no such path."""
    path = path.absolute()
    fits = len(bytes(path)) <= MOST_SOCKET_PATH_BYTES
    return f"unix:{path}" if fits else f"127.0.0.1:{free_ports(1)[0]}"


def _place_to_listen(listen: str, upstream: Upstream) -> str:
    """Its ``IP:PORT``. Raises ``ConfigError`` for one that is taken, which Envoy would say in its log alone."""
    import socket

    parts = host_and_port(listen)
    if parts is None:
        raise ConfigError(f"--listen: expected HOST:PORT, got {listen!r}")
    address = ip_and_port(*parts, option=f"--listen {listen}")
    host, port = address.rpartition(":")[0].strip("[]"), parts[1]
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(f"--listen {listen}: {error.strerror or error}; choose another") from None
    own = (address, f"127.0.0.1:{port}", f"[::1]:{port}") if ip_address(host).is_unspecified else (address,)
    if upstream.address in own:
        raise ConfigError(f"--listen {listen}: that is --upstream itself; choose another port")
    return address


async def _tell(options: GateOptions, upstream: str) -> None:
    """Once clients are served: whoever started us."""
    host, port = host_and_port(options.listen) or ("", 0)
    url = f"http://{'127.0.0.1' if host in ('0.0.0.0', '[::]') else host}:{port}"
    with move_on_after(_READY_WITHIN_S):
        async with aiohttp.ClientSession() as http:
            while not await _answers(http, f"{url}{HEALTH_PATH}"):  # noqa: ASYNC110  only it knows
                await sleep(0.1)
    _log.info("ready", gate=url, before=f"http://{upstream}", node=options.node)
    if sys.stderr.isatty():
        sys.stderr.write(
            f"next   point agents at {url}/v1, then `penstock top`; `penstock doctor --engine {url}`\n"
        )
        sys.stderr.flush()
    await Supervisor().keep_notifying(lambda: f"gate at {url} before http://{upstream}")


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    with suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with http.get(url) as answer:
            return answer.status == 200
    return False
