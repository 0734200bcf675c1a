"""Records of the gate: a ticket goes in; an entry or a refusal comes out."""

from collections.abc import Callable
from dataclasses import dataclass, field

from controlplane.core.estimators.prompt_size import PromptSize
from controlplane.core.model.causes import Change
from controlplane.core.model.errors import ControlPlaneError
from controlplane.core.model.events import Event, TurnsRefused
from controlplane.core.model.hints import NO_HINTS, Hints
from controlplane.gate.identity import Identity
from controlplane.gate.limits import GateLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket(Identity):
    """A turn at the gate, and whose it is; of who is ``anonymous`` it is the program's whole life.

    ``turn_id`` is unique among all turns, and nobody can guess it: a child's ``parent_turn`` proves whose child it
    is (docs/adr/0021). ``held_bytes`` is the memory that its request takes while held. ``waited_ns``: so long it
    was held elsewhere before it came here, in this gate's clock; its deadline counts from then. ``timeout_s``: for
    which its client waits, in seconds of the wall clock; 0: it did not say. ``hints``: what else it asks for;
    ``receipt``: what answers its ``kv_hints``.
    """

    turn_id: str
    prompt: PromptSize = field(default_factory=PromptSize)
    change: Change = field(default_factory=Change)
    held_bytes: int = 0
    waited_ns: int = 0
    timeout_s: float = 0.0
    hints: Hints = NO_HINTS
    receipt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """The turn may run. ``hold_ns`` is how long it was held, in the gate's clock."""

    hold_ns: int
    reason: str


class Refused(ControlPlaneError):
    """The turn may not run now. ``retry_after_s`` is in seconds of the wall clock, at least 1.

    ``is_final``: it will never run, and trying again is no use.
    """

    def __init__(
        self,
        *,
        status: int,
        retry_after_s: int,
        code: str,
        message: str,
        program_id: str = "",
        hold_ns: int = 0,
        is_final: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.code = code
        self.message = message
        self.program_id = program_id
        self.hold_ns = hold_ns
        self.is_final = is_final


def refusal(limits: GateLimits, ticket: Ticket, status: int, code: str, message: str, hold_ns: int) -> Refused:
    """Refuse that turn, and say when to come again."""
    wall_s = -(-limits.retry_after_ns // limits.wall_second_ns)
    return Refused(
        status=status,
        retry_after_s=max(1, wall_s),
        code=code,
        message=message,
        program_id=ticket.program_id,
        hold_ns=hold_ns,
    )


@dataclass(slots=True, kw_only=True)
class GateCounters:
    """Counts since the gate was made; they only grow."""

    passed: int = 0  # turns that ran without being held
    passed_unseen: int = 0  # of these, while no daemon had ever been seen
    held: int = 0
    held_long: int = 0  # of these, for 50 s of the wall clock or more: proxies wait for 60
    released: int = 0  # held turns that then ran
    released_locally: int = 0  # of these, while the daemon was lost
    refused_full: int = 0  # 429: a new program, the queue full
    refused_overload: int = 0  # 503: a known program, the queue at its hard bound
    refused_budget: int = 0  # 429: a budget is spent, the run's or its tenant's
    refused_expected: int = 0  # 429: a new program, that would have to wait for longer than it can
    refused_deadline: int = 0  # 503: held for hold_ns
    refused_draining: int = 0  # 503: a new program, while an operator drains the node
    refused_closed: int = 0  # 503: the gate was closed
    abandoned: int = 0  # the client left while held
    unserved: int = 0  # let in, and then the engine did not take it
    asked_again: int = 0
    daemon_lost: int = 0
    daemon_returned: int = 0
    programs_forgotten: int = 0
    outdated: int = 0  # heartbeats of a daemon that was replaced
    placeholders: int = 0  # requests that sent one for an id, as "undefined": it counts as absent
    unproven: int = 0  # turns that named a parent which neither an agent nor a turn of its has told of


REFUSED = {
    "queue_full": "refused_full",
    "overloaded": "refused_overload",
    "expected_wait": "refused_expected",
    "hold_deadline": "refused_deadline",
    "budget_spent": "refused_budget",
    "draining": "refused_draining",
    "gate_closed": "refused_closed",
    "client_left": "abandoned",
    "unserved": "unserved",
}
"""The counter of each of ``REFUSALS``."""


class Refusals:
    """Counts turns that are refused, and tells of those since the last time: a flood makes none of events."""

    def __init__(self, counters: GateCounters) -> None:
        self._counters = counters
        self._told = dict.fromkeys(REFUSED, 0)

    def count(self, code: str) -> None:
        """One more, by one of the codes of ``REFUSED``."""
        setattr(self._counters, REFUSED[code], getattr(self._counters, REFUSED[code]) + 1)

    def tell(self, send: Callable[[Event, bool], None]) -> None:
        for code, counter in REFUSED.items():
            refused = getattr(self._counters, counter)
            if turns := refused - self._told[code]:
                self._told[code] = refused
                send(TurnsRefused(code=code, turns=turns), False)
