"""Tool calls of programs, the host that they run on, and the environments that are made for them.

A tool call is known by its program and its ``call_id``. Events may be late or lost: a beginning that is known
already, or whose end came first, changes nothing.

**Paper**: ThunderAgent §4.4 (asynchronous environment preparation, when a program approaches the threshold).
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from controlplane.core.ledger.index import Index
from controlplane.core.ledger.persisted import persisted
from controlplane.core.ledger.programs import Programs, note_idle
from controlplane.core.ledger.publishers import Publishers
from controlplane.core.model import events as ev
from controlplane.core.model.commands import CancelEnvironment, Command, PrepareEnvironment
from controlplane.core.model.types import Program, Status, seconds

_OVERTAKEN_NS = seconds(5)  # one process may overtake another by so much; later it is another call of that id
_MOST_OF_ONE = 1024  # open calls of a program, and
_MOST_CALLS = 16_384  # of a publisher, and
_MOST_DETACHED = 131_072  # that nobody can be asked about: of whoever has more the oldest is over
_MOST_ENVIRONMENTS = 4096  # that wait; the one that was wanted first is made only when its program needs it
_CLOCKS_NS = seconds(0.25)  # two publishers' clocks are not known better beside each other than batches take


@dataclass(slots=True, kw_only=True)
class ToolCall:
    """A tool call that is enqueued or runs."""

    program_id: str
    call_id: str
    publisher: str
    tool: str
    started: bool
    enqueued_at_ns: int = 0  # 0: it started at once
    may_start: bool = False  # it waited for a slot of the host, and was told that it has one
    delegates: bool = False  # it waits for a child program: no load of the host
    detached: bool = False  # nobody can be asked whether it still runs
    since_ns: int = 0  # when it was told of

    @property
    def has_slot(self) -> bool:
        """Whether it takes a slot of the host, or will at once."""
        return self.started or self.may_start


@dataclass(slots=True, kw_only=True)
class Environment:
    """What a program's tools will need, and whether its making was asked for."""

    publisher: str
    asked: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Tools:
    """The calls that are open, by ``tool_key``."""

    publishers: Publishers
    programs: Programs
    calls: dict[str, ToolCall] = persisted(dict, "tools")
    queue: dict[str, None] = persisted(dict, "tool_queue")  # keys of calls that wait for a slot of the host
    environments: dict[str, Environment] = persisted(dict)  # wanted, by program, until it is let in
    wanted_by: Index = field(default_factory=Index)  # programs whose environments are, by publisher
    host: ev.HostSampled | None = persisted(lambda: None)  # its latest sample
    active: int = 0  # calls that load the host
    waiting: int = 0  # calls that wait for a slot of it
    keys_of: Index = field(default_factory=Index)  # keys
    of_publisher: Index = field(default_factory=Index)  # of calls that it can be asked about
    detached: dict[str, None] = field(default_factory=dict)  # keys of the others

    def __post_init__(self) -> None:
        for key, call in self.calls.items():
            self._index(key, call)
        for name, wanted in self.environments.items():
            self.wanted_by.add(wanted.publisher, name)

    @property
    def is_crowded(self) -> bool:
        """Whether tools have to share the host's CPUs; False while it is not known."""
        return self.host is not None and self.active + self.waiting >= self.host.cpus

    # Events

    def enqueued(self, event: ev.ToolEnqueued, now_ns: int) -> None:
        key = tool_key(event.program_id, event.call_id)
        if key not in self.calls:
            self._open(key, event, now_ns, started=False)
        call = self.calls.get(key)
        if event.wants_slot and call is not None and not call.started:
            self._wait(key, call)

    def started(self, event: ev.ToolStarted, now_ns: int) -> None:
        key = tool_key(event.program_id, event.call_id)
        call = self.calls.get(key)
        if call is None:
            self._open(key, event, now_ns, started=True)
        elif not call.started:
            self.let_start(key)  # told, or it has lost patience
            call.started = True
            self.programs.estimates.tool_wait.add(now_ns - call.enqueued_at_ns)
            self.programs.get_or_create(event.program_id, now_ns).tool_started_at_ns = now_ns

    def ended(self, event: ev.ToolEnded, now_ns: int) -> None:
        if event.told_after_ns:
            self._learn(event, self.programs.by_name.get(event.program_id))
            return
        program = self.programs.get_or_create(event.program_id, now_ns)
        key = tool_key(event.program_id, event.call_id)
        call = self.calls.get(key)
        if call is None and program.status is Status.ENDED:
            self.publishers.counts.late += 1  # the program's end has closed it
        elif call is None:
            self.publishers.ended_early(key, "" if event.detached else event.publisher, now_ns, "tool call")
        waited_for_child = call is not None and call.delegates
        program.gap_delegates = program.gap_delegates or waited_for_child
        if not waited_for_child:
            self._learn(event, program)
        self.drop(key, now_ns)

    def _learn(self, event: ev.ToolEnded, program: Program | None) -> None:
        if event.duration_ns > 0 and program is not None and not program.quarantined:
            self.programs.estimates.tool_ended(event.tool, event.duration_ns, crowded=self.is_crowded)

    def environment_wanted(self, event: ev.EnvironmentWanted, now_ns: int) -> None:
        self.programs.get_or_create(event.program_id, now_ns)
        self._unwant(event.program_id)
        self.environments[event.program_id] = Environment(publisher=event.publisher)
        self.wanted_by.add(event.publisher, event.program_id)
        if len(self.environments) > _MOST_ENVIRONMENTS:
            self._unwant(next(iter(self.environments)))

    def host_sampled(self, event: ev.HostSampled, now_ns: int) -> None:
        self.host = event

    def _open(self, key: str, event: ev.ToolEnqueued | ev.ToolStarted, now_ns: int, *, started: bool) -> None:
        ended_at_ns = self.publishers.early_ends.pop(key, None)
        if ended_at_ns is not None and not (event.detached and now_ns - ended_at_ns > _OVERTAKEN_NS):
            return
        program = self.programs.get_or_create(event.program_id, now_ns)
        call = ToolCall(
            program_id=event.program_id,
            call_id=event.call_id,
            publisher=event.publisher,
            tool=event.tool,
            started=started,
            enqueued_at_ns=0 if started else now_ns,
            detached=event.detached,
            since_ns=now_ns,
        )
        self._make_room(call, now_ns)
        self.calls[key] = call
        self._index(key, call)
        program.open_tools += 1
        program.idle_since_ns = 0
        if self._is_of_before(program, event, now_ns):
            self.publishers.counts.late += 1
            return
        program.called_nothing = False
        program.tool = program.gap_tool = event.tool
        if started:
            program.tool_started_at_ns = now_ns
        if not program.gap_has_tool:
            program.gap_has_tool = True
            self.programs.changed[program.program_id] = None

    def _is_of_before(self, program: Program, event: ev.Event, now_ns: int) -> bool:
        """Whether the call began before the program's last turn did or ended, and is told late.

        Then it says nothing of the gap behind that turn. A publisher that was cut off tells all of it at once, on a
        connection of its own: its calls may come behind the turn that they came before.
        """
        began_ns = now_ns - self.publishers.lateness.of(event.publisher, event.at_ns, now_ns)
        return began_ns < program.turn_over_ns - (0 if program.open_turns else _CLOCKS_NS)

    def _index(self, key: str, call: ToolCall) -> None:
        self._count(call, 1)
        self.keys_of.add(call.program_id, key)
        if call.detached:
            self.detached[key] = None
        else:
            self.of_publisher.add(call.publisher, key)

    def _make_room(self, call: ToolCall, now_ns: int) -> None:
        """Who has very many open calls has lost the ends of the oldest."""
        asked, of_one = self.of_publisher.of(call.publisher), self.keys_of.of(call.program_id)
        full = ((self.detached if call.detached else asked, _MOST_DETACHED if call.detached else _MOST_CALLS),)
        for keys, most in (*full, (of_one, _MOST_OF_ONE)):
            if len(keys) >= most:
                self.drop(next(iter(keys)), now_ns)

    # What becomes of a call

    def drop(self, key: str, now_ns: int) -> None:
        call = self.calls.pop(key, None)
        if call is None:
            return
        self.queue.pop(key, None)
        self._count(call, -1)
        self.keys_of.drop(call.program_id, key)
        self.of_publisher.drop(call.publisher, key)
        self.detached.pop(key, None)
        program = self.programs.by_name[call.program_id]
        program.open_tools -= 1
        program.delegating -= call.delegates
        note_idle(program, now_ns)

    def drop_all_of(self, program: Program, now_ns: int) -> None:
        """Nothing of an ended program acts any more."""
        for key in list(self.keys_of.of(program.program_id)):
            self.drop(key, now_ns)

    def over_by(self, program: Program, began_ns: int, now_ns: int) -> None:
        """Its detached calls from before ``began_ns`` are over: a turn that began then has gone on from them.

        But for those that wait for a child: where sub-agents do not name themselves, the turn may be the child's.
        """
        for key in self.detached_of(program):
            call = self.calls[key]
            if call.since_ns < began_ns and not call.delegates:
                self.drop(key, now_ns)

    def detached_of(self, program: Program) -> list[str]:
        """The keys of its calls of which nobody can be asked."""
        return [key for key in self.keys_of.of(program.program_id) if self.calls[key].detached]

    def delegate(self, parent: Program) -> None:
        """A child's run begins: the tools that run wait for it, neither load the host nor tell what they take."""
        for key in self.keys_of.of(parent.program_id):
            call = self.calls[key]
            if call.started and not call.delegates:
                self._count(call, -1)
                call.delegates = True
                parent.delegating += 1
                self.programs.changed[parent.program_id] = None
        if not self.programs.slots_for_children:
            self.programs.lend(parent, parent.delegating > 0)  # it comes back when its child has ended

    def _wait(self, key: str, call: ToolCall) -> None:
        """The call waits for a slot of the host. One that has a slot and asks again was not told: it is next."""
        if not call.may_start:
            self.queue[key] = None
            return
        self._count(call, -1)
        call.may_start = False
        self._count(call, 1)
        self.queue = {key: None, **self.queue}

    def let_start(self, key: str) -> None:
        """The call has a slot from now on; it starts as soon as it hears of that."""
        self.queue.pop(key, None)
        call = self.calls.get(key)
        if call is not None and not call.has_slot:
            self._count(call, -1)
            call.may_start = True
            self._count(call, 1)

    def _count(self, call: ToolCall, by: int) -> None:
        """Add ``by`` calls of this call's kind to the sums."""
        if not call.has_slot:
            self.waiting += by
        elif not call.delegates:
            self.active += by

    # Environments

    def environments_due(self, near: Collection[str]) -> Iterator[Command]:
        """They are made for who is let in and for the roots that are ``near``; not for who has left the queue."""
        environments, programs = self.environments, self.programs
        for name, environment in list(environments.items()):
            program = programs.by_name.get(name)
            if program is None or program.status is Status.ENDED:
                self._unwant(name)
                continue
            is_in = programs.by_name.get(program.root_id, program).status is Status.ACTIVE
            if (is_in or program.root_id in near) and not environment.asked:
                why = "it is let in" if is_in else f"one of the next {len(near)} in the queue"
                yield PrepareEnvironment(program_id=name, reason=why)
            elif environment.asked and not is_in and program.root_id not in programs.queue:
                yield CancelEnvironment(program_id=name, reason="it left the queue")
            if is_in:
                self._unwant(name)

    def forget(self, publisher: str) -> None:
        """The publisher is gone, and so are the environments that it would have made."""
        for name in list(self.wanted_by.of(publisher)):
            self._unwant(name)

    def _unwant(self, program_id: str) -> None:
        if (wanted := self.environments.pop(program_id, None)) is not None:
            self.wanted_by.drop(wanted.publisher, program_id)


def tool_key(program_id: str, call_id: str) -> str:
    """What a tool call is known by: agents count their calls, so "call_1" is many a program's."""
    return f"{program_id}\n{call_id}"
