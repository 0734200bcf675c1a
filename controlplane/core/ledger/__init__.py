"""The ledger applies events; it holds the only mutable program state.

Each noun has its records, its indices and what events do to them in a file of its own, and uses those before it
and none behind it: publishers, accounts, programs, tools, gates, groups, sandboxes, runs, handoffs, turns,
engines, publisher states. What a snapshot holds is what they declare as ``persisted``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field, fields
from types import MappingProxyType
from typing import Any

from controlplane.core.estimators.workload import Estimates
from controlplane.core.ledger import persisted as persistence
from controlplane.core.ledger.accounts import Accounts
from controlplane.core.ledger.engines import Engines
from controlplane.core.ledger.gates import Gates
from controlplane.core.ledger.groups import Groups
from controlplane.core.ledger.handoffs import Handoffs
from controlplane.core.ledger.hints import Hinted
from controlplane.core.ledger.persisted import persisted
from controlplane.core.ledger.programs import Programs
from controlplane.core.ledger.publisher_states import PublisherStates
from controlplane.core.ledger.publishers import Publishers
from controlplane.core.ledger.runs import Runs
from controlplane.core.ledger.sandboxes import Sandboxes
from controlplane.core.ledger.tools import Tools
from controlplane.core.ledger.turns import Turns
from controlplane.core.model import events as ev
from controlplane.core.model.commands import Numbering, ProgramCommand
from controlplane.core.model.steps import Steps, run
from controlplane.core.model.types import seconds

_FORGET_ENDED_AFTER_NS = seconds(60)
_NOUNS: dict[str, type[Any]] = {
    "publishers": Publishers,
    "accounts": Accounts,
    "programs": Programs,
    "hints": Hinted,
    "tools": Tools,
    "gates": Gates,
    "sandboxes": Sandboxes,
    "groups": Groups,
    "runs": Runs,
    "handoffs": Handoffs,
    "turns": Turns,
    "engines": Engines,
    "publisher_states": PublisherStates,
}


@dataclass(slots=True, kw_only=True, eq=False)
class Ledger:
    """Programs, turns and tools as the events tell them; ``snapshot``: what a snapshot held of another one."""

    snapshot: InitVar[Mapping[str, Any]] = MappingProxyType({})
    estimates: Estimates = persisted(Estimates)
    commands: Numbering = persisted(Numbering)
    publishers: Publishers = field(init=False)
    accounts: Accounts = field(init=False)
    programs: Programs = field(init=False)
    hints: Hinted = field(init=False)
    tools: Tools = field(init=False)
    gates: Gates = field(init=False)
    sandboxes: Sandboxes = field(init=False)
    groups: Groups = field(init=False)
    runs: Runs = field(init=False)
    handoffs: Handoffs = field(init=False)
    turns: Turns = field(init=False)
    engines: Engines = field(init=False)
    publisher_states: PublisherStates = field(init=False)
    handlers: dict[type[ev.Event], Callable[[Any, int], Steps[None] | None]] = field(init=False, repr=False)

    def __post_init__(self, snapshot: Mapping[str, Any]) -> None:
        for name, value in persistence.restore_kwargs(Ledger, snapshot).items():
            setattr(self, name, value)
        made: dict[str, Any] = {"estimates": self.estimates, "commands": self.commands}
        for name, noun in _NOUNS.items():  # each is given those before it that it has fields for
            needs = {each.name: made[each.name] for each in fields(noun) if each.name in made}
            made[name] = noun(**needs, **persistence.restore_kwargs(noun, snapshot))
            setattr(self, name, made[name])
        self.handlers = {
            ev.ProgramArrived: self.runs.program_arrived,
            ev.ProgramEnded: self.runs.program_ended,
            ev.TurnQueued: self.turns.queued,
            ev.TurnHinted: self.hints.hinted,
            ev.TurnAbandoned: self.runs.turn_abandoned,
            ev.TurnsRefused: self.gates.turns_refused,
            ev.TurnSubmitted: self.turns.submitted,
            ev.FirstToken: self.turns.first_token,
            ev.TurnPrefilled: self.turns.prefilled,
            ev.TurnDecoded: self.handoffs.decode_ended,
            ev.TurnEnded: self.turns.ended,
            ev.ReplyRead: self.turns.reply_read,
            ev.ToolEnqueued: self.tools.enqueued,
            ev.ToolStarted: self.tools.started,
            ev.ToolEnded: self.tools.ended,
            ev.EnvironmentWanted: self.tools.environment_wanted,
            ev.SandboxSampled: self.sandboxes.sampled,
            ev.HostSampled: self.tools.host_sampled,
            ev.PoolSampled: self.engines.pool_sampled,
            ev.ContextMoved: self.engines.context_moved,
            ev.PinReclaimed: self.engines.pin_reclaimed,
            ev.CacheFlushed: self.engines.cache_flushed,
            ev.CommandApplied: self.engines.command_applied,
            ev.CommandRejected: self.engines.command_rejected,
            ev.PublisherState: self.publisher_states.publisher_state,
            ev.OperatorOrders: self.runs.operator_orders,
            ev.EnginesListed: self.publisher_states.engines_listed,
        }

    def apply(self, event: ev.Event, now_ns: int) -> bool:
        """Take an event in; False for a duplicate. Raises ``RemoteEventError`` if it contradicts what is known."""
        return run(self.applying(event, now_ns))

    def applying(self, event: ev.Event, now_ns: int) -> Steps[bool]:
        """``apply``, with pauses where it may take long."""
        if event.sequence > 0 and not (yield from self.publisher_states.is_new(event, now_ns)):
            return False
        self.publishers.counts.applied += 1
        self.publishers.lateness.note(event.publisher, event.at_ns, now_ns)
        if (steps := self.handlers[type(event)](event, now_ns)) is not None:
            yield from steps
        return True

    def releases_due(self) -> Iterator[ProgramCommand]:
        """What tells gates and engines, once, of slots and pins that are over."""
        yield from self.runs.releases_due()
        yield from self.engines.releases_due()

    def forgetting_ended(self, now_ns: int) -> Steps[None]:
        """Drop programs that ended a while ago, and ends that waited too long for their beginning."""
        horizon_ns = now_ns - _FORGET_ENDED_AFTER_NS
        yield from self.runs.forget_ended(now_ns, horizon_ns)
        self.publishers.forget_early_ends(horizon_ns)

    def records(self) -> dict[str, Any]:
        """What a snapshot holds: with it as ``snapshot`` a ledger goes on where this one is."""
        return {name: value for noun in self._nouns() for name, value in persistence.values(noun).items()}

    def _nouns(self) -> Iterator[object]:
        yield self
        for name in _NOUNS:
            yield getattr(self, name)


_EVERY: tuple[type[Any], ...] = (Ledger, *_NOUNS.values())
RECORDS = {name: declared for noun in _EVERY for name, declared in persistence.types(noun).items()}
"""By the names in a snapshot: the type of what is kept, and what makes its first value."""
