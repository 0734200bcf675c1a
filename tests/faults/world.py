"""A node in virtual time: programs, servers with their gates, NATS, the daemon, and the faults that hit them."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import structlog

from controlplane.config import parse
from controlplane.daemon.bus import snapshot
from controlplane.gate import GateLimits
from controlplane.transport.subjects import TOOL_ROLE, command_subject, event_subject

from .auditor import CALM_AFTER_S, Auditor
from .engine import EngineServer
from .faults import AGENTS, KINDS, Fault, plan
from .model_client import Client
from .model_disk import Disk, read_bytes
from .model_nats import Server, Stored
from .processes import NODE, DaemonProcess, Process
from .programs import Agents, scripts
from .threads import Scheduler, Stuck

_WALL_NS = 1_790_000_000_000_000_000
_LOOK_S = 0.5
_AFTERWARDS_S = 20.0  # once all programs have ended: for what is believed of them
_LONGEST_GAPS_S = (3.0, 3.0, 3.0, 3.0, 3.0, 150.0)  # now and then longer than anybody waits for a publisher
_MOST_GAPS = 8  # of a program and of its children, one after the other
_RESTART_S = 1.0  # a supervisor starts a daemon again that ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a seed stands for. ``horizon_s``: faults and programs begin within it."""

    seed: int
    config: dict[str, Any]
    servers: int
    shared_place: bool  # two containers with one node's name and port
    is_embedded: bool
    programs: int
    children_ratio: float  # of the programs: whose parent waits for them
    horizon_s: float
    settle_s: float
    longest_gap_s: float  # between two turns of a program
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a run."""

    plan: Plan
    violations: tuple[str, ...]
    steps: int
    counts: Counter[str]
    log: tuple[str, ...] = field(repr=False)
    digest: str
    longest_free_s: float
    entries: int  # of turns


def plan_of(
    seed: int,
    *,
    horizon_s: float = 90.0,
    most_faults: int = 12,
    kinds: Sequence[str] = (),
    children_ratio: float = 0.1,
) -> Plan:
    """Everything that happens by chance, but for the order of threads and delays."""
    random = Random(f"{seed}/plan")
    window = random.choice((2, 3, 5))
    config: dict[str, Any] = {"node": NODE}
    kind = random.choice(("fixed", "fixed", "adaptive", "mars", "continuum"))
    if kind == "fixed":
        config |= {"admission": {"policy": "fixed", "window": window}}
    elif kind == "continuum":
        config |= {"preset": "continuum", "admission": {"window": window}}
    elif kind == "mars":
        config |= {"preset": "mars"}
    servers = random.choice((1, 2, 2))
    faults = plan(random, random.randint(min(1, most_faults), most_faults), (2.0, horizon_s), kinds)
    sizes = {"shared_place": servers == 2 and random.random() < 0.3, "is_embedded": random.random() < 0.7}
    programs = random.randrange(15, 70)
    longest_gap_s = random.choice(_LONGEST_GAPS_S)
    return Plan(
        seed=seed,
        config=config,
        servers=servers,
        programs=programs,
        children_ratio=children_ratio,
        horizon_s=horizon_s,
        settle_s=400.0 + _MOST_GAPS * longest_gap_s,
        longest_gap_s=longest_gap_s,
        faults=tuple(faults),
        **sizes,
    )


class World:
    """Build it, ``run`` it once, and look at what it returns."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.config = parse(plan.config)
        self.is_embedded = plan.is_embedded
        self.network = Random(f"{plan.seed}/network")
        self.scheduler = Scheduler(Random(f"{plan.seed}/scheduler"))
        self.wall_step_ns = 0
        self.slow: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        self.keep_ns = GateLimits().keep_ns
        self.auditor = Auditor(self)
        self.nats = Server(self.scheduler, self.network, self.wall_ns)
        self.nats.on_stored = self._stored
        self.disk = Disk(Random(f"{plan.seed}/disk"))
        self.daemons: list[DaemonProcess] = []
        self.servers: list[EngineServer] = []
        self._ended: list[DaemonProcess] = []
        self._active = 0  # faults
        self._calm_ns: int | None = 0
        self._boots = 0
        self._commands, self._tools = command_subject(NODE), event_subject(NODE, TOOL_ROLE)
        self._digest = blake2b(digest_size=8)
        self.agents = Agents(self)

    @property
    def digest(self) -> str:
        """Of all that the stream kept, and when: two runs of one plan have the same."""
        return self._digest.hexdigest()

    # Clocks

    def wall_ns(self) -> int:
        return _WALL_NS + self.scheduler.now_ns + self.wall_step_ns

    @property
    def calm_since_ns(self) -> int | None:
        """Since when everybody has had the time to recover; None while somebody may still need it."""
        if self._active or self._calm_ns is None:
            return None
        calm_ns = self._calm_ns + round(CALM_AFTER_S * 1e9) if self._calm_ns else 0
        return calm_ns if self.scheduler.now_ns >= calm_ns else None

    def count(self, kind: str) -> None:
        self.counts[kind] += 1

    # Parts

    def _boot(self) -> int:
        self._boots += 1
        return self._boots

    def start_daemon(self, *, second: bool = False, machine: str = "machine") -> None:
        if second or not any(one.is_alive and not one.has_ended for one in self.daemons):
            (self.folder / machine).mkdir(exist_ok=True)
            self.daemons.append(DaemonProcess(self, f"daemon{self._boot()}", machine))

    def kill_daemons(self) -> None:
        for process in self.daemons:
            process.kill()
        self.daemons.clear()

    def ended(self, process: DaemonProcess) -> None:
        """A daemon's process ended by itself: its supervisor starts one again, unless there is one."""
        if process.crashed:
            self.auditor.broken(f"recover-from-failures.md: nothing ends the daemon, but {process.crashed}")
        if process in self.daemons:
            self.daemons.remove(process)
        self._ended.append(process)
        if process.refused and "has a daemon" in process.refused:
            return
        if self.is_embedded:  # which a daemon that ends takes with it, and the next one starts
            self.nats.stop()
            self.nats.start()
        self.scheduler.after(_RESTART_S, self.start_daemon)

    def start_server(self, index: int) -> None:
        if index < len(self.servers) and self.servers[index].is_alive:
            return
        boot = self._boot()
        port = 30000 if self.plan.shared_place else 30000 + index
        server = EngineServer(self, f"server{index}.{boot}", port, boot)
        self.servers[index : index + 1] = [server]

    def server_of(self, number: int) -> EngineServer:
        return self.servers[number % len(self.servers)]

    def revive_nats(self) -> None:
        """What the daemon does with an embedded server that stays deaf."""
        if self.is_embedded and self.nats.is_up:
            self.count("NATS is revived")
            self.nats.stop()
            self.scheduler.after(0.3, self.nats.start)

    def _processes(self) -> Sequence[Process]:
        return [*self.daemons, *self.servers, self.agents]

    # Connections, by the names that faults know them by

    @property
    def connections(self) -> list[str]:
        servers = [f"{server.name} {part}" for server in self.servers for part in ("gate", "engine")]
        return ["daemon", AGENTS, *servers]

    def clients_named(self, name: str) -> list[Client]:
        return [one for process in self._processes() for one in process.clients if one.name == name]

    def set_slow(self, name: str, slow_s: float) -> None:
        self.slow[name] = slow_s
        for client in self.clients_named(name):
            client.be_slow(slow_s)

    def _stored(self, stored: Stored) -> None:
        self._digest.update(b"%d %d " % (self.scheduler.now_ns, self.scheduler.steps))
        self._digest.update(stored.data)
        if stored.subject == self._commands:
            self.auditor.kept(stored.data)
        elif stored.subject == self._tools:
            self.auditor.kept_of_agents(stored.data, stored.sequence)

    # Faults

    def _inject(self, fault: Fault) -> None:
        self.count(fault.kind)
        self._active += 1
        end = KINDS[fault.kind].begin(self, fault)

        def over() -> None:
            end()
            self._active -= 1
            self._calm_ns = self.scheduler.now_ns

        self.scheduler.after(fault.for_s, over)

    # A run

    @patch.object(snapshot, "read_bytes", read_bytes)  # from the model's disk
    def run(self) -> None:
        """Until everything has settled, or a promise is broken."""
        plan, scheduler = self.plan, self.scheduler
        for index in range(plan.servers):
            self.start_server(index)
        self.start_daemon()
        made = scripts(
            Random(f"{plan.seed}/programs"), plan.programs, plan.children_ratio, plan.horizon_s, plan.longest_gap_s
        )
        for script in made:
            if script.parent < 0:
                self.agents.begin(script, [child for child in made if child.parent == script.number])
        began_ns = scheduler.now_ns
        for fault in plan.faults:
            scheduler.at(began_ns + round(fault.at_s * 1e9), lambda f=fault: self._inject(f))  # type: ignore[misc]
        ends = [fault.at_s + fault.for_s for fault in plan.faults]
        latest_ns = began_ns + round((max([plan.horizon_s, *ends]) + plan.settle_s) * 1e9)
        end_ns = latest_ns
        try:
            while scheduler.now_ns < end_ns and not self.auditor.violations:
                scheduler.run(min(end_ns, scheduler.now_ns + round(_LOOK_S * 1e9)))
                self.auditor.look()
                if end_ns == latest_ns and not self.agents.unfinished and self.calm_since_ns is not None:
                    end_ns = min(latest_ns, scheduler.now_ns + round(_AFTERWARDS_S * 1e9))
        except Stuck as error:
            self.auditor.broken(f"no deadlock: {error}")
        if not self.auditor.violations:
            self.auditor.close()

    def end(self) -> None:
        for process in (*self._processes(), *self._ended):
            process.kill()
        self.agents.emitter.close(0.0)


@contextmanager
def _logs(now_ns: Callable[[], int]) -> Iterator[list[str]]:
    """What the daemon logs meanwhile."""
    lines: list[str] = []

    def keep(_: object, __: str, told: Any) -> Any:
        said = " ".join(f"{key}={value}" for key, value in told.items() if key not in ("event", "part"))
        lines.append(f"{now_ns() / 1e9:8.3f} s  {told.get('part', '?')}: {told.get('event')} {said}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[keep], cache_logger_on_first_use=False)
    try:
        yield lines
    finally:
        structlog.configure(**before)


def simulate(plan: Plan) -> Result:
    """One run of one plan."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(plan, Path(folder))
        with _logs(lambda: world.scheduler.now_ns) as log:
            try:
                world.run()
            finally:
                world.end()
        return Result(
            plan=plan,
            violations=tuple(world.auditor.violations),
            steps=world.scheduler.steps,
            counts=world.counts,
            log=tuple(log),
            digest=world.digest,
            longest_free_s=world.auditor.longest_free_s,
            entries=world.auditor.entries,
        )
