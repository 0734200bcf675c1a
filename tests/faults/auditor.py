"""What the documents promise, checked from outside while a simulated node runs.

Each rule names the page that promises it. The auditor sees what clients, gates and the bus see: requests and their
answers, heartbeats, commands and stored messages. It never asks the product what it believes, except at the end of
a run, when the product's status must be the truth.
"""

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from controlplane.core.ledger.tools import tool_key
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Status
from controlplane.gate import Ticket
from controlplane.wire.codec import Heartbeat, decode_commands, decode_events

from .faults import AGENTS, LOSE_NOTHING

if TYPE_CHECKING:
    from .engine import EngineServer
    from .world import World

# Seconds. A slot is given away "within a tick"; a message that was lost is sent again after 2 s.
FREE_SLOT_S = 6.0
# With faults: 5 s until a broken path is noticed, 5 s of lease, 30 s of keeping, and some slots to open.
FREE_SLOT_WITH_FAULTS_S = 75.0
# "A queue, and the engine idle for 1 s: the head of the queue is admitted", and the way there.
IDLE_S = 6.0
# What a gate read of a reply is said once, and agents' hooks say their words until the stream has them.
_UNREAD = "ended with a word that the stream lost before a daemon had kept it"
_UNDER_WAY_S = 6.0  # to a snapshot
_TOLD_S = 5.0  # "a message that was lost is sent again after 2 s"
# A daemon that was replaced hears of it as soon as the stream delivers.
STANDS_DOWN_S = 2.0
# After a fault: the longest time until everybody is connected again, told and asked.
CALM_AFTER_S = 20.0
_REPLY_ENDS_S = 8.0  # 5 s after a reply without a tool call the program has ended, an interval, and the way


@dataclass
class _Held:
    server: "EngineServer"
    ticket: Ticket
    since_ns: int


@dataclass
class _Gate:
    """What this gate's documents say of it, by the heartbeats and commands that reached it."""

    limit: int = 0
    heard_ns: int | None = None
    lease_ns: int = 0
    slots: dict[str, None] = field(default_factory=dict)  # roots that it let in and that keep their slots
    granted: dict[str, None] = field(default_factory=dict)


class Violation(AssertionError):
    """A promise was broken."""


class Auditor:
    """``violations`` says what was broken, and when, in seconds of the run."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.violations: list[str] = []
        self.longest_free_s = 0.0  # that anybody waited while a slot was free
        self.entries = 0
        self._roots: dict[str, str] = {}
        self._over: dict[str, int] = {}  # since when
        self._manners: dict[str, str] = {}
        self._held: dict[str, _Held] = {}
        self._running: dict[str, EngineServer] = {}
        self._rescued: dict[str, None] = {}  # let in although the limit was reached: the engine had nothing to do
        self._slots: dict[str, None] = {}  # roots that were let in anywhere and may keep their slots
        self._granted: dict[str, None] = {}  # roots that the daemon gave slots, as the stream has it
        self._forgotten: dict[str, None] = {}  # of these: what the stream has lost
        self._gates: dict[str, _Gate] = {}
        self._unasked: dict[str, None] = {}  # roots that a gate without a daemon let in
        self._unknown: dict[str, int] = {}  # calls that the daemon believes in and that are over, since when
        self._agents_back_ns = 0
        self._read_ns = 0  # until when a daemon read the stream
        self._daemon_heard = ""  # that agents' hooks spoke to last
        self._told_late: dict[str, None] = {}  # programs that ended while their agents were cut off
        self._goodbyes: dict[str, int] = {}  # by program, where it stands in the stream
        self._limit = 0
        self._free_since_ns: int | None = None
        self._idle_since_ns = 0
        self._entered_ns = 0
        self._two_since_ns = 0  # daemons that serve

    @property
    def _now_ns(self) -> int:
        return self._world.scheduler.now_ns

    def broken(self, rule: str) -> None:
        self.violations.append(f"{self._now_ns / 1e9:.3f} s: {rule}")

    def root_of(self, name: str) -> str:
        return self._roots.get(name, name)

    # What clients see

    def begins(self, name: str, parent: str) -> None:
        self._roots[name] = self.root_of(parent) if parent else name

    def over(self, name: str, manner: str) -> None:
        self._over[name] = self._now_ns
        if self._world.nats.unreachable[AGENTS]:
            self._told_late[name] = None
        self._manners[name] = manner if manner != "replies" or self._world.nats.keeps else _UNREAD

    def failed(self, server: "EngineServer", ticket: Ticket, problem: str) -> None:
        """A request failed. That is nobody's fault but the gate's, unless the server was killed under it."""
        if not problem.startswith("connection"):
            self.broken(f"failure-rules.md: turns run on, but {ticket.turn_id} failed: {problem}")

    # What servers see

    def _gate(self, server: "EngineServer") -> _Gate:
        return self._gates.setdefault(server.name, _Gate())

    def asks(self, server: "EngineServer", ticket: Ticket) -> None:
        self._held[ticket.turn_id] = _Held(server, ticket, self._now_ns)

    def entered(self, server: "EngineServer", ticket: Ticket) -> None:
        if not server.is_alive:
            return
        now_ns, root, gate = self._now_ns, self.root_of(ticket.program_id), self._gate(server)
        self._held.pop(ticket.turn_id, None)
        if ticket.turn_id in self._running:
            self.broken(f"{ticket.turn_id} entered twice")
        self._running[ticket.turn_id] = server
        self._slots[root] = None
        self.entries += 1
        self._entered_ns = now_ns
        is_new, gate.slots[root] = root not in gate.slots, None
        if root not in gate.granted and (gate.heard_ns is None or now_ns >= gate.heard_ns + gate.lease_ns):
            self._unasked[root] = None
        if gate.heard_ns is None or not gate.limit or not is_new or root in gate.granted:
            return
        lost_ns = gate.heard_ns + gate.lease_ns
        if lost_ns <= now_ns < lost_ns + self._world.keep_ns:
            alive = [name for name in gate.slots if name not in self._over or name == root]
            if len(alive) > gate.limit:
                self.broken(
                    f"recover-from-failures.md: a gate without a daemon admits up to the last limit, {gate.limit}, "
                    f"but {server.name} let {root} in beside {len(alive) - 1} others"
                )

    def refused(self, server: "EngineServer", ticket: Ticket, code: str) -> None:
        self._held.pop(ticket.turn_id, None)

    def left(self, server: "EngineServer", ticket: Ticket) -> None:
        self._held.pop(ticket.turn_id, None)
        self._running.pop(ticket.turn_id, None)

    def server_died(self, server: "EngineServer") -> None:
        self._held = {name: held for name, held in self._held.items() if held.server is not server}
        self._running = {name: other for name, other in self._running.items() if other is not server}
        self._gates.pop(server.name, None)

    def reached_gate(self, server: "EngineServer", item: Any) -> None:
        """A heartbeat or a command."""
        gate = self._gate(server)
        if isinstance(item, Heartbeat):
            if gate.heard_ns is None or self._now_ns >= gate.heard_ns + gate.lease_ns:
                # "grants that the gate gave by itself end": the gate may let others in should it be alone again
                gate.slots = {root: None for root in gate.slots if root in gate.granted}
            gate.heard_ns, gate.lease_ns, gate.limit = self._now_ns, item.lease_ttl_ns, item.limit
        elif isinstance(item, cmd.SetWindow):
            gate.limit = item.limit
        elif isinstance(item, cmd.Admit):
            gate.granted[self.root_of(item.program_id)] = None
        elif isinstance(item, cmd.Pause):
            gate.slots.pop(item.program_id, None)
            gate.granted.pop(item.program_id, None)

    # What the daemon says

    def said(self, data: bytes) -> None:
        """A batch of commands, as it leaves the daemon."""
        for command in decode_commands(data):
            if isinstance(command, cmd.Pause):
                self._slots.pop(command.program_id, None)
                self._granted.pop(command.program_id, None)
                self._rescued.pop(command.program_id, None)
            elif isinstance(command, cmd.Admit) and "idle" in command.reason:
                # The word may be lost, and is said again. Who turns out to be a child leaves its slot to its root.
                self._rescued |= {command.program_id: None, self.root_of(command.program_id): None}
            elif isinstance(command, cmd.SetWindow):
                self._limit = command.limit

    def kept(self, data: bytes) -> None:
        """A batch of commands that the stream has: "a grant that was sent holds"."""
        batch = decode_commands(data)
        limits = [command.limit for command in batch if isinstance(command, cmd.SetWindow)]
        for command in batch:
            if isinstance(command, cmd.Pause):
                self._granted.pop(command.program_id, None)
            if not isinstance(command, cmd.Admit) or self.root_of(command.program_id) != command.program_id:
                continue
            is_new = command.program_id not in self._granted and command.program_id not in self._forgotten
            self._forgotten.pop(command.program_id, None)
            self._granted[command.program_id] = None
            limit = max([self._limit, *limits])
            granted = len(self._granted.keys() - self._unasked.keys())
            if command.program_id in self._unasked:
                continue  # it came in by an open gate, and leaves between two turns
            if is_new and limit and granted > limit and command.program_id not in self._rescued:
                self.broken(
                    f"how-it-decides.md: {command.program_id} is the {granted}th with a slot, "
                    f"and the limit is {limit} ({command.reason})"
                )

    def kept_of_agents(self, data: bytes, sequence: int) -> None:
        """A batch of the agents' hooks that the stream has."""
        for event in decode_events(data).events:
            if isinstance(event, ev.ProgramEnded):
                self._goodbyes.setdefault(event.program_id, sequence)

    def lost_messages(self) -> None:
        """The stream lost some or all of its messages: grants and last words may be unknown to the daemon."""
        self._forgotten |= self._granted  # "a grant that was sent holds"
        self._granted.clear()
        for name, over_ns in self._over.items():
            unread = over_ns >= self._read_ns - round(_UNDER_WAY_S * 1e9)
            if unread and self._manners[name] in ("replies", "tells"):
                self._manners[name] = _UNREAD

    # From time to time

    def look(self) -> None:
        """Every half second."""
        now_ns = self._now_ns
        if any(one.serves for one in self._world.daemons):
            self._read_ns = now_ns
        self._drop_who_is_over()
        free = not self._limit or len(self._slots) < self._limit
        self._free_since_ns = (self._free_since_ns or now_ns) if free else None
        if self._running or not self._held:
            self._idle_since_ns = now_ns
        calm_ns = self._world.calm_since_ns
        for held in self._held.values():
            if not held.server.is_alive:
                continue
            began_ns = max(held.since_ns, held.server.http.frozen_until_ns)
            if self._free_since_ns is not None:
                self._waits_beside_a_slot(held, max(began_ns, self._free_since_ns), calm_ns)
        if calm_ns is not None and self._held:
            idle_s = (now_ns - max(self._idle_since_ns, self._entered_ns, calm_ns)) / 1e9
            if idle_s > IDLE_S:
                self.broken(
                    f"how-it-decides.md: {len(self._held)} turns wait, and no engine ran one for {idle_s:.1f} s"
                )
                self._entered_ns = now_ns
        self._note_who_is_told_late()
        self._goodbyes_hold()
        self._knows_the_tools(calm_ns)
        self._one_serves(now_ns)

    def _one_serves(self, now_ns: int) -> None:
        """At once where they share a machine; where they do not, the older one stands down when it hears again."""
        serving = [one for one in self._world.daemons if one.serves]
        machines = {one.machine for one in serving}
        if len(machines) < len(serving):
            names = [one.name for one in serving]
            self.broken(f"recover-from-failures.md: a second daemon is refused, but {names} serve")
        awake = [one.name for one in serving if one.threads[0].frozen_until_ns <= now_ns]
        if len(awake) < 2 or self._world.calm_since_ns is None:
            self._two_since_ns = now_ns
        elif now_ns - self._two_since_ns > STANDS_DOWN_S * 1e9:
            self.broken(f"recover-from-failures.md: an older daemon stands down, but {awake} serve")

    def _goodbyes_hold(self) -> None:
        """What an engine or a gate tells late does not take a program's goodbye back."""
        if any(fault.kind not in LOSE_NOTHING for fault in self._world.plan.faults):
            return
        for process in self._world.daemons:
            for name in process.daemon.controller.ledger.programs.active if process.serves else ():
                if 0 < self._goodbyes.get(name, 0) <= process.daemon.position:
                    self.broken(f"adr/0009: a goodbye holds, but {name} is active again")

    def _note_who_is_told_late(self) -> None:
        """A daemon does not know how late agents tell of tools whose hooks it hears for the first time: such a tool
        takes a reply's word back."""
        serving = [one.name for one in self._world.daemons if one.serves]
        if self._world.nats.unreachable[AGENTS] or len(serving) != 1:
            return
        if serving[0] != self._daemon_heard:
            replied = [name for name in self._told_late if self._manners[name] == "replies"]
            self._manners |= dict.fromkeys(replied, _UNREAD)
        self._daemon_heard, self._told_late = serving[0], {}

    def _knows_the_tools(self, calm_ns: int | None) -> None:
        """What agents' hooks told is believed, also of those that were taken for gone."""
        serving = [one.daemon for one in self._world.daemons if one.serves]
        if calm_ns is None or len(serving) != 1:
            return
        told = {tool_key(*call): since_ns for call, since_ns in self._world.agents.tools.items()}
        known, since_ns = serving[0].controller.ledger.tools.calls, self._now_ns - round(_TOLD_S * 1e9)
        for key in [key for key, began_ns in told.items() if began_ns < since_ns and key not in known]:
            self.broken(f"failure-rules.md: the daemon knows what publishers hold, but not {key!r}")
        self._unknown = {key: self._unknown.get(key, self._now_ns) for key in known if key not in told}
        for key in [key for key, seen_ns in self._unknown.items() if seen_ns < since_ns]:
            self.broken(f"failure-rules.md: the daemon believes that {key!r} runs")

    def _waits_beside_a_slot(self, held: _Held, began_ns: int, calm_ns: int | None) -> None:
        waited_s = (self._now_ns - began_ns) / 1e9
        self.longest_free_s = max(self.longest_free_s, waited_s)
        calmly_s = (self._now_ns - max(began_ns, calm_ns)) / 1e9 if calm_ns is not None else 0.0
        if calmly_s > FREE_SLOT_S or waited_s > FREE_SLOT_WITH_FAULTS_S:
            self.broken(
                f"{held.ticket.turn_id} waits for {waited_s:.1f} s, {calmly_s:.1f} s of them without any fault, "
                f"while {len(self._slots)} of {self._limit or 'any number of'} slots are taken"
            )
            held.since_ns = self._now_ns

    def _drop_who_is_over(self) -> None:
        after_s = {"tells": 2.0, "replies": _REPLY_ENDS_S}
        if self._world.nats.unreachable[AGENTS]:
            self._agents_back_ns = self._now_ns  # nobody can say goodbye until then
        for name in list(self._slots):
            ended_ns, manner = self._over.get(name), self._manners.get(name, "")
            if ended_ns is None or manner not in after_s:
                continue
            since_ns = max(ended_ns, self._agents_back_ns) if manner == "tells" else ended_ns
            if self._now_ns - since_ns > after_s[manner] * 1e9:
                del self._slots[name]

    # At the end

    def close(self) -> None:
        """All is calm and every program has ended: what the daemon believes must be so."""
        world = self._world
        for name in world.agents.unfinished:
            self.broken(f"no program is lost, but {name} did not end")
        for problem in world.scheduler.unhandled:
            self.broken(f"nobody took care of an error: {problem}")
        serving = [one for one in world.daemons if one.serves]
        if len(serving) != 1:
            self.broken(f"failure-rules.md: the daemon comes back, but {len(serving)} serve")
            return
        daemon = serving[0].daemon
        if not daemon.bus.delivers:
            self.broken("failure-rules.md: a bus that kept nothing is healed, but nothing comes back")
        ledger = daemon.controller.ledger
        for turn_id in ledger.gates.held:
            self.broken(f"failure-rules.md: the daemon believes that a gate holds {turn_id}")
        for turn_id in ledger.turns.running:
            self.broken(f"failure-rules.md: the daemon believes that an engine runs {turn_id}")
        for name, program in ledger.programs.by_name.items():
            if program.status is Status.ACTIVE and self._manners.get(name) in ("tells", "replies"):
                self.broken(f"adr/0009: {name} ended by its own word, and the daemon keeps its slot")
        self._conserves(ledger)
        for server in world.servers:
            mode = server.gate.health()["mode"]
            if mode != "governed":
                self.broken(f"recover-from-failures.md: the daemon is back, but {server.name} is {mode}")

    def _conserves(self, ledger: Any) -> None:
        """The sums that decisions go by are those of the records."""
        anew = type(ledger)(snapshot=ledger.records())
        for noun, names in (
            ("programs.charges", ("active_roots", "demand_blocks", "lent_blocks", "queued_blocks")),
            ("tools", ("active", "waiting")),
        ):
            counted, right = (attrgetter(noun)(one) for one in (ledger, anew))
            for name in names:
                if getattr(counted, name) != getattr(right, name):
                    self.broken(
                        f"blocks are conserved, but {name} of {noun} is {getattr(counted, name)}, "
                        f"not {getattr(right, name)}"
                    )
