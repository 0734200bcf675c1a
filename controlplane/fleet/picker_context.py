"""What the request streams of one picker share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from controlplane.fleet.active_turn import AwaitingResponse, Turns
from controlplane.fleet.choice import Choice
from controlplane.fleet.roster import Engine
from controlplane.gate.bodies import Bodies
from controlplane.gate.contexts import Contexts
from controlplane.gate.continuity import Continuity
from controlplane.gate.engine_api import EngineApi
from controlplane.gate.gate import Gate
from controlplane.gate.repairs import Repairer
from controlplane.gate.replies import ReplyReader

if TYPE_CHECKING:
    from controlplane.fleet.request_stream import RequestStream

_CROWD = 32  # a few milliseconds of work


@dataclass(slots=True, kw_only=True)
class PickerCounters:
    """Counts since the picker started; they only grow."""

    turns: int = 0  # let in and sent to an engine
    held: int = 0  # of these and the refused, those that had to wait
    passed: int = 0  # requests that are no turns
    refused: int = 0  # answered in the engine's place
    asked_again: int = 0  # that had been asked for elsewhere before
    handed_over: int = 0  # held ones that were sent away to be asked for elsewhere
    elsewhere: int = 0  # turns that another engine answered than the first one chosen
    malformed: int = 0  # messages that make no sense here


@dataclass(slots=True, kw_only=True)
class PickerContext:
    """Everything of one picker that a stream needs, and what all its streams together do."""

    gate: Gate
    choice: Choice
    turns: Turns
    paths: frozenset[str]
    now_ns: Callable[[], int]
    names_in_request_id: Callable[[], bool] = lambda: False
    engine_api: Callable[[Engine], EngineApi | None] = lambda engine: None
    health: Callable[[], object] | None = None  # what the health page shows; None: engines have their own
    counters: PickerCounters = field(default_factory=PickerCounters)
    awaiting: AwaitingResponse = field(default_factory=AwaitingResponse)
    bodies: Bodies = field(init=False)
    contexts: Contexts = field(default_factory=Contexts)
    continuity: Continuity = field(default_factory=Continuity)
    repairer: Repairer = field(default_factory=Repairer)
    replies: ReplyReader = field(default_factory=ReplyReader)
    holding: "set[RequestStream]" = field(default_factory=set)
    undecided: int = 0  # requests that have no answer yet, the held ones among them

    def __post_init__(self) -> None:
        self.bodies = Bodies(self.gate.limits)

    @property
    def is_crowded(self) -> bool:
        """Whether so many requests are being read that the last of them may wait for seconds."""
        return self.undecided - len(self.holding) > _CROWD
