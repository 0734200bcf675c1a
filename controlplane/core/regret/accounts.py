"""What is open about one program: the words that were said about its context, its holds and its admission."""

from dataclasses import dataclass

from controlplane.core.model.causes import Cause
from controlplane.core.model.events import TurnSubmitted
from controlplane.core.model.places import place_of

_CAUSE_OF = {
    "release": Cause.RELEASED,
    "demote": Cause.DEMOTED,
    "discard": Cause.DISCARDED,
    "pause": Cause.PAUSED,
    "place": Cause.MOVED,
}

_KNOWN = frozenset(Cause)


@dataclass(slots=True, kw_only=True, eq=False)
class OpenDecision:
    """A command that waits for what follows from it."""

    kind: str
    number: int
    at_ns: int
    until_ns: int = 0  # of a pin: when it ends by itself; of a release: when it would have
    ended_ns: int = 0  # 0: nothing has ended it yet
    reclaimed: bool = False
    whole: bool = True  # its beginning was seen
    wait_ns: int = 0  # of a pause
    pushed_tokens: float = 0.0  # of an admission: what its turn pushed out, as is estimated
    launch_ns: int = 0  # of an admission: for which its turn waited in the engine
    again_tokens: int = 0  # of an admission: by its turn, once it was retracted


@dataclass(slots=True, kw_only=True, eq=False)
class Hold:
    """A turn that a gate holds, and the engine's room when it began to: tokens that are free, or evictable."""

    turn_id: str
    at_ns: int
    free_tokens: int
    evictable_tokens: int


@dataclass(frozen=True, slots=True)
class Computed:
    """What a turn that ended had computed, in tokens: its prompt, and that with its reply."""

    turn_id: str
    prompt_tokens: int
    context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a turn could find of its program's context, and what its client left of that.

    ``kept_tokens`` of the ``had_tokens`` are in front of the first difference; ``cause`` and ``where`` name it.
    """

    had_tokens: int
    kept_tokens: int
    cause: Cause = Cause.NONE
    where: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class Account:
    """One program, as far as events and commands told of it."""

    program_id: str
    tenant: str = ""
    agent: str = ""
    program_class: str = ""
    tool: str = ""
    client: str = ""
    turns: int = 0  # that ended
    prompt_tokens: int = 0
    context_tokens: int = 0
    earlier: tuple[Computed, ...] = ()  # its latest turns, the last one behind the others
    asked: TurnSubmitted | None = None  # what a gate told of the prompt of the turn that has yet to begin
    prefix_tokens: int = 0  # found with its first turn: what it shares with others
    publisher: str = ""  # the engine that ran its last turn
    idle_since_ns: int = 0
    came_ns: int = 0  # when its next turn was asked for; 0: it was not
    submitted_ns: int = 0
    seen_ns: int = 0
    ended_ns: int = 0  # when its run ended; 0: it has not
    began_turn: str = ""  # the last whose first token came
    ended_turn: str = ""
    flushed: bool = False  # since its last turn, its engine's cache was
    runs: bool = False  # its last turn's first token came, and its end did not
    decisions: tuple[OpenDecision, ...] = ()  # tuples: of very many programs most have none
    holds: tuple[Hold, ...] = ()
    admit: OpenDecision | None = None

    @property
    def place(self) -> str:
        return place_of(self.publisher)

    @property
    def is_away(self) -> bool:
        """Whether it has no turn that was asked for and did not end."""
        return not (self.came_ns or self.submitted_ns or self.runs)

    def pin(self) -> OpenDecision | None:
        """The pin that is in force, as far as anybody said."""
        for decision in reversed(self.decisions):
            if decision.kind == "retain":
                return None if decision.ended_ns else decision
        return None

    def record(self, decision: OpenDecision) -> OpenDecision | None:
        """One more word on its context; the pin that it ends, if it does. A pause leaves a pin as it is."""
        ended = None
        if decision.kind != "pause":
            ended = self.pin()
            for former in self.decisions:
                if not former.ended_ns:
                    former.ended_ns = decision.at_ns
        self.decisions += (decision,)
        return ended

    def drop(self, decision: OpenDecision) -> None:
        self.decisions = tuple(each for each in self.decisions if each is not decision)

    def take_hold(self, turn_id: str) -> Hold | None:
        taken = next((hold for hold in self.holds if hold.turn_id == turn_id), None)
        if taken is not None:
            self.holds = tuple(hold for hold in self.holds if hold is not taken)
        return taken

    def last_decision(self) -> OpenDecision | None:
        """The one that what follows is charged to: a pause only where nothing else was said."""
        for decision in reversed(self.decisions):
            if decision.kind != "pause":
                return decision
        return self.decisions[-1] if self.decisions else None

    def wanted(self, prompt_tokens: int) -> Wanted:
        """What a prompt of that length could find of what was computed before.

        Where a gate compared it with an earlier one the difference says. Else a shorter prompt is another history.
        A prompt that has no room for the last reply repeats the last prompt only: agents leave reasoning out.
        """
        told, base = self.asked, self._base()
        if base is None or told is None:
            whole = self.context_tokens if prompt_tokens >= self.context_tokens else self.prompt_tokens
            return _all(whole if prompt_tokens >= self.prompt_tokens else 0)
        if not told.change:
            whole = base.context_tokens if prompt_tokens >= base.context_tokens else base.prompt_tokens
            return _all(min(whole, prompt_tokens) if told.kept_ratio else 0)  # 0: they have nothing in common
        had = min(base.context_tokens, prompt_tokens)
        kept = min(had, round(told.kept_ratio * base.prompt_tokens))
        cause = Cause(told.change) if told.change in _KNOWN else Cause.EDITED  # of a later version
        return Wanted(had_tokens=had, kept_tokens=kept, cause=cause, where=told.change_at)

    def without_reply(self, cached_tokens: int, had_tokens: int, slack_tokens: int) -> bool:
        """Whether all was found but the last reply: it then came back in another form than it was computed in."""
        base, told = self._base(), self.asked
        if base is None or told is None or told.change or had_tokens <= base.prompt_tokens:
            return False
        return abs(cached_tokens - base.prompt_tokens) <= slack_tokens

    def _base(self) -> Computed | None:
        """The turn that the next one's prompt was compared with."""
        name = self.asked.continues if self.asked is not None else ""
        return next((each for each in self.earlier if each.turn_id == name), None) if name else None

    def why_missed(self, decision: OpenDecision | None, publisher: str, scheduled_ns: int, *, gone: bool) -> Cause:
        """Why its context was not there. ``gone``: the engine that had it has left."""
        if self.flushed:
            return Cause.FLUSHED
        if self.publisher and publisher and publisher != self.publisher:
            return Cause.ENGINE_GONE if gone or place_of(publisher) == self.place else Cause.MOVED
        if decision is None:
            return Cause.PRESSURE
        if decision.kind != "retain":
            return _CAUSE_OF[decision.kind]
        if decision.reclaimed:
            return Cause.RECLAIMED
        if self.came_ns > decision.until_ns:
            return Cause.TTL_SHORT
        return Cause.HELD if max(scheduled_ns, self.submitted_ns) > decision.until_ns else Cause.PRESSURE


def _all(tokens: int) -> Wanted:
    return Wanted(had_tokens=tokens, kept_tokens=tokens)
