"""Keep busy programs on the device and idle ones in host memory; the rest lose their contexts.

**Paper**: MORI §4.3. Every ``interval_s`` the contexts of the active programs are compared with the pool. Above
its size programs are demoted, acting ones before reasoning ones and the most idle first: into host memory while
that has room, else into nothing. A reasoning one keeps its turn and is moved when that ends (lazy demotion). While
all fit nothing moves, except that one who waits for its turn takes the place of acting ones that are more idle than
it is: the partition's boundary lies between them. Of several engines each has tiers of its own.

A program is paused when it leaves the device, so that its next turn is held until there is room for it again: who
comes back is the packing policy's business (``by_tier``), and how many the admission policy's (``capacity``).

What host memory holds is measured by the engine. Only the contexts of programs that wait there claim it: copies of
others, who ended or are back on the device, make room for them. Where less is in use than they would take, the
engine has dropped some of them, and their room is free again.

A sub-agent is a program of its own, with a slot and a tier of its own (§3.1). For its parent it is a tool that runs
long: the parent is idle meanwhile, counts in the demand, and is demoted by its idleness like any other.

Labels tell the engine which contexts to keep where (§4.3.2): who is demoted becomes ``idle``, or ``inactive`` where
nothing of it is kept; whoever is let in is ``busy`` by that alone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.estimators.idleness import idleness
from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.commands import Command, Demote, Discard, Label, Pause
from controlplane.core.model.errors import require
from controlplane.core.model.types import Pressure, Program, Replica, Status, Tier, seconds
from controlplane.core.policies.facts import own_blocks
from controlplane.core.policies.protocols import RetentionPolicy

_UNSEEN_NS = seconds(5)  # a sample that is older than this move may be the latest: a command, a copy and a sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """When the tiers were looked at (-1: never), and who was paused and still runs."""

    at_ns: int = -1
    names: tuple[str, ...] = ()
    sent: tuple[tuple[str, int], ...] = ()  # to the host lately, and when: samples may not tell of it yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers(RetentionPolicy[Leaving]):
    """``interval_s``: between two looks. ``idleness_cycles`` is the paper's k.

    ``moves``: who is paused is labelled and moved off, too. A fleet leaves that to its nodes, which run the same.
    """

    interval_s: float = 5.0
    idleness_cycles: int = 5
    moves: bool = True

    def __post_init__(self) -> None:
        require("interval_s", self.interval_s, low=0, high=3600)
        require("idleness_cycles", self.idleness_cycles, low=1, high=16)

    @property
    def slots_for_children(self) -> bool:
        return True

    def initial(self) -> Leaving:
        return Leaving()

    def plan(
        self,
        state: Leaving,
        programs: Mapping[str, Program],
        changed: Sequence[Program],
        facts: Estimates,
        pressure: Pressure,
        now_ns: int,
    ) -> tuple[Leaving, Sequence[Command]]:
        whole = Replica(
            name="",
            total_blocks=pressure.kv_total_blocks,
            demand_blocks=pressure.kv_demand_blocks,
            host_total_blocks=pressure.host_total_blocks,
            host_used_blocks=pressure.host_used_blocks,
        )
        pools = pressure.replicas or (whole,)
        sent = {name: sent_ns for name, sent_ns in state.sent if now_ns - sent_ns < _UNSEEN_NS}
        host = HostRoom(pools, programs, sent)
        commands: list[Command] = []
        leaving = []
        for name in state.names:
            program = programs.get(name)
            if program is None or program.status in (Status.ACTIVE, Status.ENDED):
                continue  # it was let in again, or has gone
            if program.open_turns:
                leaving.append(name)
            else:
                commands += host.move_off(program, "its turn ended")
        at_ns = state.at_ns
        if pressure.kv_total_blocks > 0 and (at_ns < 0 or now_ns - at_ns >= seconds(self.interval_s)):
            at_ns = now_ns
            for program, why in (found for pool in pools for found in self._demoted(pool, programs, facts, now_ns)):
                commands.append(Pause(program_id=program.program_id, reason=why))
                if not self.moves:
                    continue
                if program.open_turns:
                    leaving.append(program.program_id)
                    commands.append(Label(program_id=program.program_id, label="idle", reason=why))
                else:
                    commands += host.move_off(program, why)
        sent |= dict.fromkeys((c.program_id for c in commands if isinstance(c, Demote)), now_ns)
        return Leaving(at_ns=at_ns, names=tuple(leaving), sent=tuple(sent.items())), commands

    def _demoted(
        self, pool: Replica, programs: Mapping[str, Program], facts: Estimates, now_ns: int
    ) -> list[tuple[Program, str]]:
        """Who leaves this engine's device, and why. An engine without a name has all programs."""
        idle = {
            name: idleness(program, self.idleness_cycles, now_ns)
            for name, program in programs.items()
            if program.status in (Status.ACTIVE, Status.WAITING)
            and not program.parent_id
            and pool.name in ("", program.replica)
        }
        active = [p for name in idle if (p := programs[name]).status is Status.ACTIVE]
        active.sort(key=lambda p: (p.open_turns > 0, -idle[p.program_id], p.program_id))
        demoted: list[tuple[Program, str]] = []
        free = pool.total_blocks - pool.demand_blocks
        while active and free < 0:
            program = active.pop(0)
            phase = "reasoning" if program.open_turns else "acting"
            demoted.append(
                (program, f"the pool lacks {-free} blocks: {phase}, idleness {idle[program.program_id]:.2f}")
            )
            free += own_blocks(program.kv_blocks, facts, is_last=not active)
        acting = [program for program in active if not program.open_turns]
        for waiting in self._returning(programs, idle):
            gone, room = 0, free
            while room < waiting.queued_blocks and gone < len(acting):
                if idle[acting[gone].program_id] <= idle[waiting.program_id]:
                    break
                room += own_blocks(acting[gone].kv_blocks, facts, is_last=False)
                gone += 1
            if room < waiting.queued_blocks:
                break
            why = f"{waiting.program_id} waits and is less idle: {idle[waiting.program_id]:.2f}"
            demoted += [(p, f"idleness {idle[p.program_id]:.2f}; {why}") for p in acting[:gone]]
            acting, free = acting[gone:], room - waiting.queued_blocks
        return demoted

    def _returning(self, programs: Mapping[str, Program], idle: Mapping[str, float]) -> list[Program]:
        """Who waits and has had a turn, in the order in which they are let in. Newcomers displace nobody."""
        waiting = [
            programs[name]
            for name in idle
            if programs[name].status is Status.WAITING and programs[name].queued_turns and programs[name].turn_index
        ]
        waiting.sort(key=lambda p: (p.kv_tier is not Tier.HOST, idle[p.program_id], p.program_id))
        return waiting


class HostRoom:
    """Host memory of each engine that one look may still fill. ``sent``: who was sent there lately."""

    def __init__(self, pools: Sequence[Replica], programs: Mapping[str, Program], sent: Collection[str]) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._programs = programs
        self._sent = frozenset(sent)
        self._free_blocks: dict[str, int] = {}  # summed up only when somebody is to be moved

    def move_off(self, program: Program, why: str) -> Sequence[Command]:
        """To the host if there is room, else away: the program's label says which."""
        name, engine = program.program_id, "" if "" in self._pools else program.replica
        pool = self._pools.get(engine, Replica(name=engine))
        if engine not in self._free_blocks:
            self._free_blocks[engine] = pool.host_total_blocks - self._claimed_blocks(pool)
        free_blocks = self._free_blocks[engine]
        if program.kv_blocks <= free_blocks:
            self._free_blocks[engine] -= program.kv_blocks
            return (Label(program_id=name, label="idle", reason=why), Demote(program_id=name, reason=why))
        lacks = f"{why}; {max(0, free_blocks)} of {pool.host_total_blocks} blocks of host memory are left"
        return (Label(program_id=name, label="inactive", reason=why), Discard(program_id=name, reason=lacks))

    def _claimed_blocks(self, pool: Replica) -> int:
        """What programs that wait on the host take of it: no more than is in use, but for those sent lately."""
        settled = unseen = 0
        for program in self._programs.values():
            if pool.name not in ("", program.replica):
                continue
            if program.program_id in self._sent and program.status in (Status.PAUSED, Status.WAITING):
                unseen += program.kv_blocks
            elif program.kv_tier is Tier.HOST:
                settled += program.kv_blocks
        return min(settled, pool.host_used_blocks) + unseen
