"""Puts a fleet daemon together: what ``penstock fleet up`` runs.

One process: a daemon as a node has it, under the fleet's name, which leads or stands by as the lease says; and the
gate that Envoy asks.
"""

import os
import secrets
from contextlib import suppress
from functools import partial
from pathlib import Path

from anyio import CancelScope, move_on_after, sleep
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.kv import KeyValue

from controlplane.config import Config, Source
from controlplane.core.model.errors import ConfigError, EngineUnavailable
from controlplane.daemon.compose import UMASK, attach_services, shielded_exit_stack
from controlplane.daemon.daemon import Daemon
from controlplane.daemon.process.instance_lock import instance_lock
from controlplane.emit.emitter import Emitter
from controlplane.eventloop import run, task_group
from controlplane.files import replace_file
from controlplane.fleet.buckets import LeaderKey, fleet_bucket
from controlplane.fleet.connection import IMPATIENT, connected
from controlplane.fleet.ext_proc import PickerServer
from controlplane.fleet.front import Front
from controlplane.fleet.in_cluster import InCluster
from controlplane.fleet.leader import Leader, Parts
from controlplane.fleet.lease import Lease
from controlplane.fleet.pluginless import PluginlessEngines
from controlplane.fleet.registry import Registry, parse_engine
from controlplane.fleet.roster import Engine, Roster
from controlplane.fleet.stream import FleetBus, of_engines
from controlplane.gate import GateLimits
from controlplane.transport.endpoint import default_state_dir, url_from_env
from controlplane.wire.files import MOST_SECRET_BYTES, read_text

_BEGIN_S = 60.0  # a cluster that was just started elects its leaders first
_AGAIN_S = 0.2


def run_fleet(source: Source) -> None:
    """Serve until SIGINT or SIGTERM; SIGHUP reads the configuration again."""
    os.umask(UMASK)
    run(_serve, source)


async def _serve(source: Source) -> None:
    config = source.read().for_a_daemon().config
    url = config.nats_url or url_from_env()
    if not url:
        raise ConfigError(
            "a fleet needs the NATS servers that its nodes use: name them with --nats", field="nats_url"
        )
    state_dir = Path(config.state_dir) if config.state_dir else default_state_dir()
    with instance_lock(config.node, state_dir):
        await _serve_locked(source, url, state_dir)


async def _serve_locked(source: Source, url: str, state_dir: Path) -> None:
    resolved = source.read().for_a_daemon()
    config, fleet = resolved.config, resolved.config.fleet
    engines = [parse_engine(text) for text in fleet.engines]
    async with task_group() as tasks, shielded_exit_stack() as ending:
        ending.callback(tasks.cancel_scope.cancel)
        lease_name = f"penstock-lease-{config.node}"  # a connection of its own: no lease waits behind a stream
        client = await connected(url, lease_name, within_s=_BEGIN_S)
        ending.push_async_callback(_close, client)
        bucket, known = await _begun(client, config.node, engines)
        lease = Lease(
            LeaderKey(bucket), _identity(state_dir / config.node), ttl_s=fleet.lease_ttl_s, rank=fleet.rank
        )
        roster, registry = Roster(), Registry(bucket)
        in_cluster = InCluster(fleet.kubernetes, roster, lambda: lease.fence if lease.leading else None)
        for engine in () if in_cluster.has_engines else known:
            roster.put(engine)
        bus = FleetBus(
            url,
            config.node,
            {engine.place.partition("/")[0] for engine in roster},
            domains=dict(domain.split("=", 1) for domain in fleet.domains),
            may_change=lambda: lease.leading,
        )
        await bus.connect()
        ending.push_async_callback(bus.close)
        daemon = Daemon(source, resolved, bus, state_dir / config.node / "snapshot.json", leadership=lease)
        daemon.pipeline.event_filter = of_engines(config.node)
        daemon.roster = roster
        parts = _parts(config, url, daemon, bus, lease, roster)
        leader = Leader(parts)
        await attach_services(daemon, state_dir, tasks, ending)
        keep = daemon.tasks.keep
        works = [tasks.start_soon(keep, name, work) for name, work in in_cluster.works.items()]
        await in_cluster.wait_synced()
        await parts.picker.start(fleet.listen)
        parts.front.start()
        await bus.answer_hand_over(leader.hand_over, lambda: daemon.is_leader)
        works += [tasks.start_soon(keep, name, work) for name, work in leader.works.items()]
        if not in_cluster.has_engines:
            works.append(tasks.start_soon(keep, "roster", partial(registry.follow, roster, daemon.own.cannot_read)))
        works.append(tasks.start_soon(keep, "lease", partial(_contend, daemon, lease)))
        try:
            await daemon.run()
        finally:
            with CancelScope(shield=True):
                works.pop().cancel()
                await leader.leave()
                await parts.picker.stop()
                await parts.pluginless.stop()
                await parts.front.stop()
                for work in works:
                    work.cancel()


def _parts(config: Config, url: str, daemon: Daemon, bus: FleetBus, lease: Lease, roster: Roster) -> Parts:
    limits = GateLimits(time_scale=config.time_scale)
    front = Front(
        config.node,
        url,
        now_ns=daemon.clock.now_ns,
        limits=limits,
        tenant_header=config.fleet.tenant_header,
        connect_options=IMPATIENT,
    )

    def publisher(node: str, role: str) -> Emitter:
        return Emitter(url=url, node=node, role=role, connect_options=IMPATIENT)

    pluginless = PluginlessEngines(roster, publisher, now_ns=daemon.clock.now_ns)
    picker = PickerServer(
        gate=front.gate, roster=roster, turns=pluginless, name=config.node, now_ns=daemon.clock.now_ns
    )
    return Parts(
        daemon=daemon,
        bus=bus,
        lease=lease,
        roster=roster,
        front=front,
        picker=picker,
        pluginless=pluginless,
        endpoints=Path(config.fleet.endpoints) if config.fleet.endpoints else None,
    )


async def _contend(daemon: Daemon, lease: Lease) -> None:
    """Not before the stream was read: whoever leads knows what was."""
    await daemon.ready.wait()
    await lease.run()


def _identity(folder: Path) -> str:
    """Who this daemon is, to the lease: what its state folder says, which one process at a time has locked."""
    path = folder / "identity"
    with suppress(OSError, ValueError):
        if known := read_text(path, MOST_SECRET_BYTES).strip():
            return known
    name = secrets.token_hex(8)
    try:
        replace_file(path, [f"{name}\n".encode()])
    except OSError as error:
        raise ConfigError(f"state_dir: cannot write {path}: {error.strerror}", field="state_dir") from None
    return name


async def _begun(client: Client, fleet: str, engines: list[Engine]) -> tuple[KeyValue, list[Engine]]:
    """The fleet's bucket, and the engines in it: as soon as the servers can keep them."""
    failed: EngineUnavailable | None = None
    with move_on_after(_BEGIN_S):
        while True:
            try:
                bucket = await fleet_bucket(client, fleet)
                known = Registry(bucket)
                await known.begin(engines)
                return bucket, await known.engines()
            except EngineUnavailable as error:
                failed = error
            await sleep(_AGAIN_S)
    raise failed or EngineUnavailable(f"no bucket for the fleet within {_BEGIN_S:g} s")


async def _close(client: Client) -> None:
    with suppress(NatsError, OSError, TimeoutError):
        await client.close()
