"""The regret ledger: each decision is opened when it is issued, and closed by what happened.

    book.event(event, now_ns)       what the controller hears
    book.command(command, now_ns)   what it decides

It is told what a recorder of a run is told, in a daemon, in the simulator and from a log, and holds by itself all
that it goes by: it never sees a controller, so that it cannot change what one decides. It costs a few microseconds
an event, behind the decision.

What is charged to whom (docs/adr/0054): tokens that a turn computes again go to the last word on its context, or
to nobody, memory to the pin that held it or the word that freed it, waiting to the hold or the pause before it.
"""

from collections.abc import Callable, Iterable
from sys import intern
from typing import Any

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.causes import Cause
from controlplane.core.model.places import place_of
from controlplane.core.model.types import Program, class_of, seconds
from controlplane.core.regret.accounts import Account, Computed, Hold, OpenDecision
from controlplane.core.regret.judge import Judge, VerdictListener
from controlplane.core.regret.returns import as_s, found_by
from controlplane.core.regret.verdict import NO_DECISION, Outcome, Verdict

LEAST_HOLD_NS = seconds(0.1)  # a shorter one is the way to the daemon and back
_FORGOTTEN_NS = seconds(3600)  # who was silent for so long is not waited for
_LOOK_EVERY_NS = seconds(60)
_LATE_NS = seconds(5)  # what is said of a run behind its end is of its last turn, and came on another connection
_FADE = 0.98
_MOST_EARLIER = 4  # turns whose prompts a gate remembers of a program


def _ignore(verdict: Verdict) -> None:
    """Only the sums are asked for."""


_KINDS: dict[type[cmd.Command], str] = {
    cmd.Retain: "retain",
    cmd.Release: "release",
    cmd.Demote: "demote",
    cmd.Discard: "discard",
    cmd.Place: "place",
    cmd.Pause: "pause",
    cmd.Admit: "admit",
}


class RegretLedger(Judge):
    """What is open about each program, from its opening to its verdict."""

    def __init__(self, on_verdict: VerdictListener = _ignore) -> None:
        super().__init__(on_verdict)
        self._accounts: dict[str, Account] = {}
        self._places: frozenset[str] | None = None  # a fleet's engines; None: nobody lists them
        self._looked_ns = 0
        self._takes: dict[type[ev.Event], Callable[[Any, int], None]] = {
            ev.ProgramArrived: self._arrived,
            ev.TurnQueued: self._queued,
            ev.TurnAbandoned: self._abandoned,
            ev.TurnSubmitted: self._submitted,
            ev.FirstToken: self._first_token,
            ev.TurnEnded: self._turn_ended,
            ev.ReplyRead: self._reply_read,
            ev.ToolEnqueued: self._tool,
            ev.ToolStarted: self._tool,
            ev.ProgramEnded: lambda event, now_ns: self._program_ended(event.program_id, now_ns),
            ev.PoolSampled: lambda event, now_ns: self.prices.sampled(event),
            ev.PinReclaimed: self._reclaimed,
            ev.CacheFlushed: self._flushed,
            ev.CommandRejected: self._rejected,
            ev.EnginesListed: self._listed,
        }

    # What a recorder is told

    def event(self, event: ev.Event, now_ns: int) -> None:
        if (take := self._takes.get(type(event))) is not None and not getattr(event, "for_now", False):
            take(event, now_ns)

    def command(self, command: cmd.Command, now_ns: int) -> None:
        kind = _KINDS.get(type(command))
        if kind is None:
            return
        account = self._accounts.get(command.program_id)  # type: ignore[attr-defined]
        if account is None or account.ended_ns:  # it ended, and this bids it farewell; or it is not known yet
            self.sums.unheard += 1
            return
        decision = OpenDecision(kind=kind, number=command.command_id, at_ns=now_ns)
        if kind == "admit":
            self.close_admit(account, now_ns, Outcome.REPLACED)
            account.admit = decision
            return
        if kind == "place" and (command.moves or not command.leaves):  # type: ignore[attr-defined]
            return  # its context is where its turn will be
        if kind == "retain":
            decision.until_ns = now_ns + command.ttl_ns  # type: ignore[attr-defined]
        former_pin = account.record(decision)
        if kind == "release":
            decision.until_ns = former_pin.until_ns if former_pin is not None else now_ns
        if former_pin is not None and kind == "retain":
            account.drop(former_pin)
            self.close_decision(account, former_pin, now_ns, Outcome.REPLACED)

    def tick(self, now_ns: int) -> None:
        """Time passes: who was silent for an hour is not waited for."""
        if now_ns - self._looked_ns < _LOOK_EVERY_NS:
            return
        self._looked_ns = now_ns
        silent_ns, ended_ns = now_ns - _FORGOTTEN_NS, now_ns - _LOOK_EVERY_NS
        over = [
            each
            for each in self._accounts.values()
            if each.seen_ns < silent_ns or (each.ended_ns and each.seen_ns < ended_ns)
        ]
        for account in over:
            self._forget(account, now_ns)

    def config(self, text: str, now_ns: int) -> None:
        """Nothing: decisions say what they are."""

    def close(self, now_ns: int) -> None:
        """Nothing more comes: what is open is unknown."""
        for account in list(self._accounts.values()):
            self._forget(account, now_ns)

    def resume(self, programs: Iterable[Program], now_ns: int) -> None:
        """Begin anew in the middle of a run, with contexts as a controller knows them.

        What was open before is unknown, and is not told of; a pin that holds still is followed from here on, as one
        of which nobody knows the number.
        """
        self._accounts.clear()
        for program in programs:
            if not program.turn_index:
                continue
            account = self._account(program.program_id, now_ns)
            account.tenant, account.turns = program.tenant, program.turn_index
            account.context_tokens, account.prompt_tokens = program.context_tokens, program.prompt_tokens
            account.tool, account.idle_since_ns = program.gap_tool, program.gap_since_ns or now_ns
            if program.retained_until_ns > now_ns:
                pin = OpenDecision(
                    kind="retain", number=0, at_ns=now_ns, until_ns=program.retained_until_ns, whole=False
                )
                account.record(pin)

    # Events

    def _arrived(self, event: ev.ProgramArrived, now_ns: int) -> None:
        account = self._account(event.program_id, now_ns)
        account.tenant = account.tenant or event.tenant

    def _queued(self, event: ev.TurnQueued, now_ns: int) -> None:
        account = self._account(event.program_id, now_ns)
        account.tenant, account.agent = account.tenant or event.tenant, account.agent or event.agent
        account.came_ns = account.came_ns or now_ns
        if all(hold.turn_id != event.turn_id for hold in account.holds):
            pool = self.prices.pool(account.place)
            account.holds += (
                Hold(
                    turn_id=event.turn_id,
                    at_ns=now_ns,
                    free_tokens=pool.free_tokens,
                    evictable_tokens=pool.evictable_tokens,
                ),
            )

    def _abandoned(self, event: ev.TurnAbandoned, now_ns: int) -> None:
        account = self._accounts.get(event.program_id)
        hold = account.take_hold(event.turn_id) if account is not None else None
        if account is None or hold is None:
            return
        if not account.holds:
            account.came_ns = 0
        self.close_hold(account, hold, now_ns, Outcome.ABANDONED)

    def _submitted(self, event: ev.TurnSubmitted, now_ns: int) -> None:
        account = self._account(event.program_id, now_ns)
        account.came_ns = account.came_ns or now_ns
        account.submitted_ns = now_ns
        account.client = intern(event.client) if event.client else account.client
        account.asked = event if event.continues else None
        pool = self.prices.pool(place_of(event.publisher))
        needed_tokens = max(0, event.projected_blocks * pool.block_tokens - account.context_tokens)
        hold = account.take_hold(event.turn_id)
        if hold is not None:
            self._let_go(account, hold, needed_tokens, now_ns)
        if account.admit is not None and not account.admit.pushed_tokens:
            pushed = min(pool.evictable_tokens, max(0, needed_tokens - pool.free_tokens))
            account.admit.pushed_tokens = pushed * self.sums.comes_back_ratio

    def _let_go(self, account: Account, hold: Hold, needed_tokens: int, now_ns: int) -> None:
        """A held turn runs: it waited, and meanwhile others' contexts stayed that it would have pushed out."""
        wait_ns = now_ns - hold.at_ns
        self.usual_wait_s = _FADE * self.usual_wait_s + (1 - _FADE) * as_s(wait_ns)
        paused = next((decision for decision in account.decisions if decision.kind == "pause"), None)
        if paused is not None:
            paused.wait_ns += wait_ns
            return
        if wait_ns < LEAST_HOLD_NS:
            self.sums.let_through += 1
            return
        pushed = min(hold.evictable_tokens, max(0, needed_tokens - hold.free_tokens))
        spared = round(pushed * self.sums.comes_back_ratio)
        gain_s = self.prices.computing_s(spared, 0)
        self.close_hold(account, hold, now_ns, Outcome.RAN, hit_tokens=spared, gain_s=gain_s, estimated=True)

    def _first_token(self, event: ev.FirstToken, now_ns: int) -> None:
        account = self._account(event.program_id, now_ns)
        if account.began_turn == event.turn_id:
            return
        account.runs = True
        if event.prompt_tokens <= 0:
            return  # from an engine without a plugin, which tells at the turn's end how long it was
        account.began_turn = event.turn_id
        self.prices.prefilled(event)
        self.sums.client(account.client).computed_tokens += max(0, event.prompt_tokens - event.cached_tokens)
        if account.admit is not None and not account.admit.launch_ns:
            account.admit.launch_ns = max(1, event.launch_delay_ns)
        if not account.turns:
            account.prefix_tokens = event.cached_tokens
        else:
            self._came_back(account, event, now_ns)
        self._began(account)

    @staticmethod
    def _began(account: Account) -> None:
        """What was said of its context before this turn is over."""
        account.decisions, account.asked, account.flushed = (), None, False
        account.came_ns = account.submitted_ns = 0

    def _turn_ended(self, event: ev.TurnEnded, now_ns: int) -> None:
        account = self._account(event.program_id, now_ns)
        if account.ended_turn == event.turn_id:
            return
        account.ended_turn = event.turn_id
        account.runs = False
        if account.began_turn != event.turn_id:
            self._began(account)  # nobody told what it found
        account.take_hold(event.turn_id)
        if account.admit is not None:
            account.admit.again_tokens = event.recomputed_tokens
            self.close_admit(account, now_ns, Outcome.RAN if event.ok else Outcome.ABANDONED)
        elif event.recomputed_tokens:
            again, nobody = event.recomputed_tokens, OpenDecision(kind=NO_DECISION, number=0, at_ns=now_ns)
            cost_s = self.prices.computing_s(again, 0)
            sides = {"again_tokens": again, "again_s": cost_s, "cost_s": cost_s}
            self.tell(account, nobody, now_ns, Outcome.MISS, cause=Cause.RETRACTED, **sides)
        if not event.ok:
            return
        account.turns += 1
        if account.turns == 1:
            account.program_class = intern(class_of(account.tenant, account.agent, event.prompt_tokens))
        account.prompt_tokens = event.prompt_tokens
        account.context_tokens = event.prompt_tokens + event.output_tokens
        computed = Computed(event.turn_id, event.prompt_tokens, account.context_tokens)
        account.earlier = (*account.earlier[1 - _MOST_EARLIER :], computed)
        account.publisher, account.tool = intern(event.publisher), intern(event.tool)  # few, of very many programs
        account.idle_since_ns, account.flushed = now_ns, False

    def _reply_read(self, event: ev.ReplyRead, now_ns: int) -> None:
        account = self._accounts.get(event.program_id)
        if account is None:
            return
        account.tool = account.tool or event.tool
        if event.is_last and account.ended_turn == event.turn_id and not account.holds:
            self._program_ended(event.program_id, now_ns)

    def _tool(self, event: ev.ToolEnqueued | ev.ToolStarted, now_ns: int) -> None:
        account = self._accounts.get(event.program_id)
        if account is not None:
            account.seen_ns, account.tool = now_ns, account.tool or event.tool

    def _reclaimed(self, event: ev.PinReclaimed, now_ns: int) -> None:
        self.sums.pins_lost += 1
        account = self._accounts.get(event.program_id)
        pin = account.pin() if account is not None else None
        if pin is not None:
            pin.reclaimed, pin.ended_ns = True, now_ns

    def _flushed(self, event: ev.CacheFlushed, now_ns: int) -> None:
        for account in self._accounts.values():
            account.flushed = account.flushed or (bool(account.publisher) and event.empties(account.place))

    def _rejected(self, event: ev.CommandRejected, now_ns: int) -> None:
        account = self._accounts.get(event.program_id)
        if account is None or (account.place and account.place != place_of(event.publisher)):
            return  # every engine hears every command: this one does not have the program
        decision = next((each for each in account.decisions if each.number == event.command_id), None)
        # One that was to renew a pin which had just been given up stands for that one.
        if decision is not None and not decision.reclaimed:
            account.drop(decision)
            self.tell(account, decision, now_ns, Outcome.REJECTED)

    def _listed(self, event: ev.EnginesListed, now_ns: int) -> None:
        self._places = frozenset((*event.serving, *event.draining))

    def _program_ended(self, program_id: str, now_ns: int) -> None:
        account = self._accounts.get(program_id)
        if account is None or account.ended_ns:
            return
        account.ended_ns = account.seen_ns = max(1, now_ns)
        self.sums.ends += bool(account.turns)
        if account.is_away:  # else its last turn is under way, and told by another publisher
            self.close_all(account, now_ns, Outcome.ENDED)

    def _came_back(self, account: Account, event: ev.FirstToken, now_ns: int) -> None:
        self.sums.returns += 1
        found, last = found_by(account, event, now_ns, self.prices, self._places), account.last_decision()
        for decision in account.decisions:
            if decision is not last:
                self.close_decision(account, decision, now_ns, Outcome.REPLACED)
        nobody = OpenDecision(kind=NO_DECISION, number=0, at_ns=account.idle_since_ns)
        self.close_decision(account, last or nobody, now_ns, found.outcome, found)
        self.blame_client(account, now_ns, found, event.cached_tokens)

    def _forget(self, account: Account, now_ns: int) -> None:
        del self._accounts[account.program_id]
        self.close_all(account, now_ns, Outcome.ENDED if account.ended_ns else Outcome.UNKNOWN)

    def _account(self, program_id: str, now_ns: int) -> Account:
        account = self._accounts.get(program_id)
        if account is None:
            account = self._accounts[program_id] = Account(program_id=program_id)
        elif account.ended_ns and now_ns - account.ended_ns > _LATE_NS:
            account.ended_ns = 0  # it goes on
        account.seen_ns = now_ns
        return account
