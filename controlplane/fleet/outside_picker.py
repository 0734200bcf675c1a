"""The picker of a gate outside: the process that Envoy asks, with a gate and the events of one server.

``python -m controlplane.fleet.outside_picker JSON``: ``penstock gate`` starts it and keeps it alive.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from signal import SIGINT, SIGTERM

import aiohttp
import anyio
import grpc
import msgspec

from controlplane import clocks
from controlplane.core.model import commands as cmd
from controlplane.core.model.events import NO_PLUGIN, PLUGINLESS, PREFILL
from controlplane.core.model.places import node_of, server_of
from controlplane.core.model.types import seconds
from controlplane.daemon.process.logs import configure, logger
from controlplane.daemon.process.tasks import Tasks
from controlplane.emit.emitter import Emitter
from controlplane.eventloop import on_signals, run, task_group
from controlplane.fleet.checkup import Checkup
from controlplane.fleet.engine_apis import ObeyingEngine, has_api_alone
from controlplane.fleet.ext_proc import PickerServer
from controlplane.fleet.front import Front
from controlplane.fleet.outside import GateOptions
from controlplane.fleet.pluginless import PluginlessEngines
from controlplane.fleet.roster import Engine, Roster, Standing
from controlplane.fleet.upstream import Server, Upstream, recognized, upstream_of
from controlplane.gate import GATED_PATHS, MORE_PATHS, GateLimits
from controlplane.gate.authority import Mode
from controlplane.gate.hints import ENGINES_PRIORITY
from controlplane.gate.repairs import repairs_in
from controlplane.gate.variables import TENANT_HEADER_VARIABLE, limit_values
from controlplane.transport.bounds import raise_open_files
from controlplane.transport.endpoint import (
    ADDRESS_VARIABLE,
    MOST_SOCKET_PATH_BYTES,
    api_address,
    control_path,
    resolve_url,
    url_from_env,
)
from controlplane.transport.loopback import channel_options
from controlplane.transport.roles import BusRole
from controlplane.wire.control import METHODS, Fields

_LOOK_S = 2.0
_RECOGNIZE_NS = seconds(30)  # of one that is known: SGLang's pages ask its schedulers
_SPEAKS_WITHIN_NS = seconds(15)  # an engine tells of its pool once a second
_DAEMON_WITHIN_S = 30  # it is started as we are; after that we go by what the server says
_ANSWERS_WITHIN_S = 2.0
_CONTEXTS = (cmd.Retain, cmd.Demote, cmd.Prefetch, cmd.Discard)
_log = logger("gate")


class OutsidePicker:
    """Everything of it. Use it in one event loop."""

    def __init__(self, options: GateOptions) -> None:
        self._options = options
        self.upstream: Upstream = upstream_of(options.upstream)
        self.server: Server | None = None  # until it answers
        self._recognized_ns = 0
        self._began_ns, self._was_told = clocks.awake_ns(), False  # by the daemon, who tells of engines
        self._routes = False  # it hands turns on to prefill engines, which tell of themselves
        self._place = self.upstream.place(options.node)  # or of its data-parallel ranks, once they tell
        self._bus = resolve_url(None, options.node, options.state_path, role=BusRole.ENGINE)
        # Whether it tells of itself is to be seen: until then nobody tells of it.
        self.roster = Roster([Engine(place=self._place, address=self.upstream.address)])
        self.front = Front(
            options.node,
            self._bus,
            now_ns=clocks.awake_ns,
            role=f"gate-{self.upstream.port}",
            limits=GateLimits(**limit_values(os.environ)),
            tenant_header=os.environ.get(TENANT_HEADER_VARIABLE, ""),
        )
        self.pluginless = PluginlessEngines(self.roster, self._publisher, now_ns=clocks.awake_ns)
        self.picker = PickerServer(
            gate=self.front.gate,
            roster=self.roster,
            turns=self.pluginless,
            name=f"{options.node}-gate",
            repairs=repairs_in(os.environ),
            health_page=self.health,
            engine_api=self.pluginless.api_of,
            names_in_request_id=self._names_in_request_id,
            paths=(*GATED_PATHS, *MORE_PATHS),
        )
        self.checkup = Checkup(self.roster, self.pluginless, on_change=_stands)
        self.obeying = ObeyingEngine(self.pluginless, options.slot_save_path, options.slot_save_bytes)

    async def serve(self) -> None:
        """Until SIGINT or SIGTERM."""
        keep = Tasks().keep
        async with task_group() as tasks:
            self.pluginless.lead()
            self.front.start()
            self.picker.set_serving(True)
            await self.picker.start(self._options.picker)
            tasks.start_soon(keep, "engine checks", self.checkup.run)
            tasks.start_soon(keep, "upstream", self._keep_looking)
            tasks.start_soon(self._tell_if_nobody_decides)
            tasks.start_soon(keep, "engine API", self.obeying.run)
            await on_signals(lambda _: tasks.cancel_scope.cancel(), SIGINT, SIGTERM)
        with anyio.CancelScope(shield=True):
            self.front.gate.close()
            await self.picker.stop()
            await self.pluginless.stop()
            await self.front.stop()

    def health(self) -> object:
        """What ``GET /penstock/health`` shows."""
        server, engine = self.server, self._engine
        obeys = self.obeying.problem or "obeys by its API"
        stats = asdict(self.front.emitter.stats)
        del stats["last_error"]  # it may hold the bus's password
        return {
            **self.front.gate.health(),
            "outside": {
                "upstream": self.upstream.address,
                "server": server.title if server else "nobody answers there",
                "scheduler": "tells of itself and obeys" if engine.has_plugin and server else obeys,
                "is_gone": engine.standing is Standing.GONE,
            },
            "picker": self.picker.state(),
            "engine": self.pluginless.health().get(engine.place, self.checkup.health().get(engine.place)),
            "emitter": stats,
        }

    def _names_in_request_id(self) -> bool:
        """Whether that is the only way to tell a scheduler whose turn it is: front end or router drops ours."""
        return self.server is not None and (bool(self.server.front_end) or self._routes)

    @property
    def _engine(self) -> Engine:
        """It, or the first of its ranks."""
        return next(iter(self.roster))

    def _publisher(self, node: str, role: str) -> Emitter:
        def obey(command: cmd.Command) -> None:
            """In the emitter's thread. What nobody can do is said at once, or it would be believed done."""
            if not self.obeying.hears(command) and isinstance(command, _CONTEXTS):
                emitter.emit(cmd.answer(command, NO_PLUGIN))

        emitter = Emitter(url=self._bus, node=node, role=role, on_command=obey)
        return emitter

    # -- what stands behind -----------------------------------------------------------------------------------

    async def _tell_if_nobody_decides(self) -> None:
        await anyio.sleep(_DAEMON_WITHIN_S)
        if self.front.gate.mode is Mode.PASSIVE:
            advice = "`penstock doctor` says whether the bus and a daemon are there"
            _log.warning("no daemon was ever heard, so every turn passes", advice=advice)

    async def _keep_looking(self) -> None:
        timeout = aiohttp.ClientTimeout(total=_ANSWERS_WITHIN_S)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            is_new = False
            while True:
                server = await self._recognized(http) if self._is_to_be_recognized() else self.server
                is_new = is_new or (server is not None and server != self.server)
                self.server = server or self.server
                if self.server is not None:
                    told_at = await self._told_at(self.server)
                    self._update(told_at)
                    # What may be a plugin's is only assumed until a daemon was asked.
                    if is_new and (self._was_told or self.server.has_gate or not told_at):
                        is_new, knows_pool = False, bool(told_at or self._options.pool_tokens)
                        _introduce(self.server, self.upstream, knows_pool=knows_pool)
                await anyio.sleep(_LOOK_S)

    def _is_to_be_recognized(self) -> bool:
        """Not known yet, away and so perhaps another one when it is back, or not asked for a while."""
        is_old = clocks.awake_ns() - self._recognized_ns >= _RECOGNIZE_NS
        return self.server is None or self._engine.standing is Standing.GONE or is_old

    async def _recognized(self, http: aiohttp.ClientSession) -> Server | None:
        server = await recognized(http, self.upstream, wholly=self.server is not None)
        if server is not None:
            self._recognized_ns = clocks.awake_ns()
        return server

    def _update(self, told_at: Sequence[str]) -> None:
        """``told_at``: the places at which a plugin tells of it."""
        former, places = self._engine, told_at or (self._place,)
        for place in places:
            known = self.roster.at(place) or replace(former, place=place)
            engine = replace(known, has_plugin=bool(told_at), pool_tokens=self._options.pool_tokens)
            if engine != self.roster.at(place):
                self.roster.put(engine)
                _log.info("engine", place=place, tells_of_itself=engine.has_plugin)
        for gone in [engine.place for engine in self.roster if engine.place not in places]:
            self.roster.remove(gone)
        if self.server is not None:
            has_plugin = bool(told_at or self.server.gate)  # of which the daemon may not have heard yet
            self.obeying.found(self._engine, self.server.engine, has_plugin=has_plugin)
            self.front.gate.hints.higher_first = ENGINES_PRIORITY.get(self.server.engine)

    async def _told_at(self, server: Server) -> Sequence[str]:
        """Where a plugin in its scheduler tells of it: the daemon hears it there, in words that are not ours.

        Each of its data-parallel ranks has a place.
        """
        if has_api_alone(server.engine):
            return ()
        address = self._control_api()
        if not address:
            return self._guessed(server)
        method = METHODS["ListEngines"]
        try:
            async with grpc.aio.insecure_channel(address, options=channel_options(address)) as channel:
                ask = channel.unary_unary(
                    method.path,
                    request_serializer=method.encode_request,
                    response_deserializer=method.decode_reply,
                )
                reply = await ask(Fields(limit=0), timeout=_ANSWERS_WITHIN_S)
        except grpc.aio.AioRpcError:
            if not self._was_told and clocks.awake_ns() - self._began_ns > seconds(_DAEMON_WITHIN_S):
                return self._guessed(server)
            return [engine.place for engine in self.roster if engine.has_plugin]
        self._was_told = True
        ours = server_of(self._place)
        told = [row for row in reply.engines if server_of(row.place) == ours and row.passive not in PLUGINLESS]
        if not (told or server.engine):  # a router: turns begin at prefill engines
            told = [
                row
                for row in reply.engines
                if row.disaggregation == PREFILL and node_of(row.place) == self._options.node
            ]
        self._routes = any(server_of(row.place) != ours for row in told)
        speaks = any(0 < row.heard_ns < _SPEAKS_WITHIN_NS for row in told)
        return sorted(row.place for row in told) if speaks else ()

    def _guessed(self, server: Server) -> Sequence[str]:
        """Where no daemon says it: a gate in the server comes with the plugin's scheduler side."""
        return (self._place,) if server.has_gate else ()

    def _control_api(self) -> str:
        """Where the daemon is asked; empty where nobody knows."""
        if (address := os.environ.get(ADDRESS_VARIABLE, "")) or url_from_env():  # of a bus it may be anywhere
            return api_address(address)
        path = control_path(self._options.node, self._options.state_path)
        return f"unix:{path}" if len(bytes(path)) <= MOST_SOCKET_PATH_BYTES else ""


def _introduce(server: Server, upstream: Upstream, *, knows_pool: bool) -> None:
    _log.info("server", address=upstream.address, is_=server.title)
    if server.has_gate:
        _log.warning("it has a gate of its own", mode=server.gate, advice="clients can go to it directly")
    elif not (knows_pool or server.pool_tokens or has_api_alone(server.engine)):
        _log.warning(
            "its metrics page tells no KV pool, so every turn passes",
            advice="give its size with --pool-tokens, or have the server show it: SGLang with --enable-metrics",
        )


def _stands(engine: Engine, why: str) -> None:
    _log.warning("engine", place=engine.place, standing=str(engine.standing), why=why)


async def _serve(options: GateOptions) -> None:
    await OutsidePicker(options).serve()


def main(arguments: list[str]) -> None:
    """Serve with the options of the one argument, as JSON."""
    options = msgspec.json.decode(arguments[0], type=GateOptions)
    os.umask(0o077)
    configure(options.log_level)
    raise_open_files()
    run(_serve, options)


if __name__ == "__main__":
    main(sys.argv[1:])
