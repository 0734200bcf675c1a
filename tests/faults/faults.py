"""The faults, each by its kind: how it begins and how it ends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .world import World

HOUR_S = 3600.0
AGENTS = "agents tools"  # the connection of their hooks


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: it begins ``at_s`` and lasts for ``for_s``. ``chance`` chooses whom it hits: 0 to 1."""

    kind: str
    at_s: float
    for_s: float
    chance: float

    def __str__(self) -> str:
        return f"{self.at_s:8.3f} s  {self.kind} for {self.for_s:.3f} s ({self.chance:.3f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """``begin`` returns what ends it. ``for_s`` are the shortest and the longest time that it lasts."""

    begin: Callable[["World", Fault], Callable[[], None]]
    for_s: tuple[float, float]
    weight: float = 1.0


def _nothing() -> None:
    """It ends by itself."""


def _kill_daemon(world: "World", fault: Fault) -> Callable[[], None]:
    world.kill_daemons()
    return world.start_daemon


def _freeze_daemon(world: "World", fault: Fault) -> Callable[[], None]:
    until_ns = world.scheduler.now_ns + round(fault.for_s * 1e9)
    for process in world.daemons:
        process.freeze(until_ns)
    return _nothing


def _second_daemon(world: "World", fault: Fault) -> Callable[[], None]:
    world.start_daemon(second=True)
    return _nothing


def _replace_daemon(world: "World", fault: Fault) -> Callable[[], None]:
    """It is frozen, and on another machine one is started that knows nothing of it; then it goes on."""
    _freeze_daemon(world, fault)
    if not world.is_embedded:  # else NATS is on the machine that is frozen
        world.start_daemon(second=True, machine=f"machine {fault.at_s:.3f}")
    return _nothing


def _restart_nats(world: "World", fault: Fault) -> Callable[[], None]:
    world.nats.stop()
    return world.nats.start


def _replace_nats(world: "World", fault: Fault) -> Callable[[], None]:
    """By another server at its address, whose store is empty."""
    world.nats.stop()
    world.nats.delete_streams()
    world.auditor.lost_messages()
    return world.nats.start


def _freeze_nats(world: "World", fault: Fault) -> Callable[[], None]:
    world.nats.freeze(fault.for_s)
    return _nothing


def _freeze_both(world: "World", fault: Fault) -> Callable[[], None]:
    """As a machine that is suspended, or a VM that is paused, has the daemon and its server."""
    _freeze_daemon(world, fault)
    return _freeze_nats(world, fault)


def _delete_stream(world: "World", fault: Fault) -> Callable[[], None]:
    world.nats.delete_streams()
    world.auditor.lost_messages()
    return _nothing


def _fill_disk(world: "World", fault: Fault) -> Callable[[], None]:
    world.nats.fill_up()
    world.disk.full = True
    world.auditor.lost_messages()

    def free() -> None:
        world.nats.free()
        world.disk.full = False
        if not world.is_embedded:  # "an external nats-server may have to be started again after that"
            world.nats.stop()
            world.nats.start()

    return free


def _fill_snapshots(world: "World", fault: Fault) -> Callable[[], None]:
    world.disk.full = True
    return lambda: setattr(world.disk, "full", False)


def _fail_snapshots(world: "World", fault: Fault) -> Callable[[], None]:
    world.disk.failing = True
    return lambda: setattr(world.disk, "failing", False)


def _hang_disk(world: "World", fault: Fault) -> Callable[[], None]:
    world.disk.hung = True
    return lambda: setattr(world.disk, "hung", False)


def _damage_snapshot(world: "World", fault: Fault) -> Callable[[], None]:
    world.kill_daemons()
    for name in list(world.disk.files):
        world.disk.tear(name)
    return world.start_daemon


def _lose_power(world: "World", fault: Fault) -> Callable[[], None]:
    """Of the machine on which NATS and the daemon run: the last second of the stream, and of the disk, may go."""
    world.kill_daemons()
    world.nats.stop()
    world.nats.lose_tail(world.wall_ns() - round(fault.chance * 1e9))
    world.disk.lose_power()
    world.auditor.lost_messages()

    def start() -> None:
        world.nats.start()
        world.start_daemon()

    return start


def _lose_messages(world: "World", fault: Fault) -> Callable[[], None]:
    world.nats.loss_ratio = 0.1 + 0.5 * fault.chance
    return lambda: setattr(world.nats, "loss_ratio", 0.0)


def _send_twice(world: "World", fault: Fault) -> Callable[[], None]:
    world.nats.twice_ratio = 0.1 + 0.5 * fault.chance
    return lambda: setattr(world.nats, "twice_ratio", 0.0)


def _one_of(world: "World", fault: Fault) -> str:
    names = world.connections
    return names[int(fault.chance * len(names))]


def _slow_down(world: "World", fault: Fault) -> Callable[[], None]:
    """One connection's messages come late, behind what others sent after them."""
    name = _one_of(world, fault)
    world.set_slow(name, 0.05 + 1.3 * (fault.chance * 997 % 1.0))
    return lambda: world.set_slow(name, 0.0)


def _cut(world: "World", fault: Fault) -> Callable[[], None]:
    return _cut_off(world, _one_of(world, fault))


def _cut_off(world: "World", name: str) -> Callable[[], None]:
    unreachable = world.nats.unreachable
    unreachable[name] += 1
    for client in world.clients_named(name):
        client.cut()
    return lambda: unreachable.subtract([name])


def _cut_agents_off(world: "World", fault: Fault) -> Callable[[], None]:
    """For longer than the daemon waits for an answer of theirs."""
    return _cut_off(world, AGENTS)


def _freeze_gate(world: "World", fault: Fault) -> Callable[[], None]:
    server = world.servers[int(fault.chance * len(world.servers))]
    server.freeze(world.scheduler.now_ns + round(fault.for_s * 1e9))
    return _nothing


def _kill_server(world: "World", fault: Fault) -> Callable[[], None]:
    index = int(fault.chance * len(world.servers))
    world.servers[index].kill()
    return lambda: world.start_server(index)


def _step_clock(world: "World", fault: Fault) -> Callable[[], None]:
    world.wall_step_ns += round((HOUR_S if fault.chance < 0.5 else -HOUR_S) * 1e9)
    return _nothing


def _step_clock_and_restart(world: "World", fault: Fault) -> Callable[[], None]:
    world.kill_daemons()
    _step_clock(world, fault)
    return world.start_daemon


LOSE_NOTHING = frozenset(
    {
        "connection is slow",
        "connection is cut",
        "agents are cut off",
        "NATS is restarted",
        "NATS is frozen",
        "messages come twice",
        "snapshots do not fit",
        "snapshots fail",
        "disk hangs",
        "second daemon",
        "server is frozen",
        "clock is stepped",
    }
)
"""Kinds that make messages late, lose none, and leave the daemon its life."""

KINDS: dict[str, Kind] = {
    "daemon is killed": Kind(begin=_kill_daemon, for_s=(0.01, 3), weight=2),
    "daemon stays away": Kind(begin=_kill_daemon, for_s=(6, 50)),
    "daemon is frozen": Kind(begin=_freeze_daemon, for_s=(0.5, 90)),
    "second daemon": Kind(begin=_second_daemon, for_s=(0.1, 2)),
    "daemon is replaced": Kind(begin=_replace_daemon, for_s=(2, 20)),
    "NATS is restarted": Kind(begin=_restart_nats, for_s=(0.01, 8)),
    "NATS is replaced": Kind(begin=_replace_nats, for_s=(0.01, 8)),
    "NATS is frozen": Kind(begin=_freeze_nats, for_s=(0.5, 12)),
    "daemon and NATS are frozen": Kind(begin=_freeze_both, for_s=(0.5, 90)),
    "stream is deleted": Kind(begin=_delete_stream, for_s=(0.1, 0.1)),
    "disk is full": Kind(begin=_fill_disk, for_s=(1, 20)),
    "snapshots do not fit": Kind(begin=_fill_snapshots, for_s=(1, 10)),
    "snapshots fail": Kind(begin=_fail_snapshots, for_s=(1, 10)),
    "disk hangs": Kind(begin=_hang_disk, for_s=(1, 60)),
    "snapshot is damaged": Kind(begin=_damage_snapshot, for_s=(0.01, 1)),
    "power is lost": Kind(begin=_lose_power, for_s=(0.5, 5)),
    "messages are lost": Kind(begin=_lose_messages, for_s=(1, 10)),
    "messages come twice": Kind(begin=_send_twice, for_s=(1, 10)),
    "connection is slow": Kind(begin=_slow_down, for_s=(1, 10), weight=2),
    "connection is cut": Kind(begin=_cut, for_s=(0.01, 10), weight=2),
    "agents are cut off": Kind(begin=_cut_agents_off, for_s=(60, 150), weight=0.5),
    "server is frozen": Kind(begin=_freeze_gate, for_s=(0.5, 10)),
    "server is killed": Kind(begin=_kill_server, for_s=(0.05, 8)),
    "clock is stepped": Kind(begin=_step_clock, for_s=(0.1, 0.1)),
    "clock is stepped at a restart": Kind(begin=_step_clock_and_restart, for_s=(0.01, 1)),
}


def plan(random: Random, count: int, within_s: tuple[float, float], kinds: Sequence[str] = ()) -> list[Fault]:
    """So many faults, in the order in which they begin; of all kinds, unless some are named."""
    names = list(kinds or KINDS)
    weights = [KINDS[name].weight for name in names]
    found = []
    for kind in random.choices(names, weights, k=count):
        low, high = KINDS[kind].for_s
        for_s = low * (high / low) ** random.random()
        found.append(Fault(kind=kind, at_s=random.uniform(*within_s), for_s=for_s, chance=random.random()))
    return sorted(found, key=lambda fault: fault.at_s)
