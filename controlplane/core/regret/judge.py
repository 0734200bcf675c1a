"""Closes what is open about a program: what each decision cost and brought, by what followed from it."""

from collections.abc import Callable
from typing import Any

from controlplane.core.model.causes import Cause
from controlplane.core.regret.accounts import Account, Hold, OpenDecision
from controlplane.core.regret.prices import Prices
from controlplane.core.regret.returns import NOTHING, Return, as_s, freed_s, pinned_s
from controlplane.core.regret.sums import Sums
from controlplane.core.regret.verdict import CLIENT, NO_DECISION, Outcome, Verdict

VerdictListener = Callable[[Verdict], None]


class Judge:
    """``on_verdict`` hears each verdict as it falls; ``sums`` has them all."""

    def __init__(self, on_verdict: VerdictListener) -> None:
        self.sums = Sums()
        self.prices = Prices()
        self.usual_wait_s = 0.0
        self._on_verdict = on_verdict

    def close_decision(
        self, account: Account, decision: OpenDecision, now_ns: int, outcome: Outcome, found: Return = NOTHING
    ) -> None:
        """``found`` by the next turn, where this was the last word or nobody had one; else it is another one's."""
        until_ns = found.scheduled_ns or now_ns
        cause, gain_s, cost_s, held_token_s, freed_token_s = found.cause, 0.0, found.again_s, 0.0, 0.0
        if decision.kind == "retain":
            held_token_s = account.context_tokens * pinned_s(decision, until_ns)
            cost_s += self.prices.room_s(held_token_s, account.place)
            gain_s = found.hit_s
            cause = Cause.RECLAIMED if decision.reclaimed else cause
        elif decision.kind != NO_DECISION and (
            decision.kind != "pause" or found is not NOTHING or outcome is Outcome.ENDED
        ):
            freed_token_s = found.gone_ratio * account.context_tokens * freed_s(decision, until_ns)
            gain_s = self.prices.room_s(freed_token_s, account.place)
        wait_s = as_s(decision.wait_ns)
        self.tell(
            account,
            decision,
            now_ns,
            outcome if decision.whole or outcome is not Outcome.ENDED else Outcome.UNKNOWN,
            cause=cause,
            hit_tokens=found.hit_tokens,
            again_tokens=found.again_tokens,
            again_s=found.again_s,
            held_token_s=held_token_s,
            freed_token_s=freed_token_s,
            wait_s=wait_s,
            cost_s=cost_s + wait_s,
            gain_s=gain_s,
            paid_s=found.paid_s,
            best_s=found.best_s,
        )

    def blame_client(self, account: Account, now_ns: int, found: Return, cached_tokens: int) -> None:
        """What it changed was computed again; beside the verdict on whatever was decided."""
        again = found.client_tokens
        if again:
            changed = OpenDecision(kind=CLIENT, number=0, at_ns=account.idle_since_ns)
            cost_s = self.prices.computing_s(again, cached_tokens)
            named = {"cause": found.client_cause, "where": found.where}
            self.tell(
                account, changed, now_ns, Outcome.MISS, again_tokens=again, again_s=cost_s, cost_s=cost_s, **named
            )

    def close_hold(self, account: Account, hold: Hold, now_ns: int, outcome: Outcome, **sides: Any) -> None:
        """A held turn waits no longer; ``sides``: what it gained, where it ran."""
        number = account.admit.number if account.admit is not None and sides else 0
        opened, wait_s = OpenDecision(kind="hold", number=number, at_ns=hold.at_ns), as_s(now_ns - hold.at_ns)
        self.tell(account, opened, now_ns, outcome, wait_s=wait_s, cost_s=wait_s, **sides)

    def close_admit(self, account: Account, now_ns: int, outcome: Outcome) -> None:
        """Its turn ran: what that pushed out, and its wait in the engine, against the wait that was usual."""
        decision, account.admit = account.admit, None
        if decision is None:
            return
        ran, again = outcome in (Outcome.RAN, Outcome.ABANDONED), decision.again_tokens
        pushed_s, again_s = self.prices.computing_s(decision.pushed_tokens, 0), self.prices.computing_s(again, 0)
        self.tell(
            account,
            decision,
            now_ns,
            outcome,
            cause=Cause.RETRACTED if again else Cause.NONE,
            again_tokens=again,
            again_s=again_s,
            cost_s=as_s(decision.launch_ns) + pushed_s + again_s,
            gain_s=self.usual_wait_s if ran else 0.0,
            estimated=True,
        )

    def close_all(self, account: Account, now_ns: int, outcome: Outcome) -> None:
        """No turn tells what became of it."""
        last = account.last_decision()
        for decision in account.decisions:
            self.close_decision(account, decision, now_ns, outcome if decision is last else Outcome.REPLACED)
        account.decisions = ()
        self.close_admit(account, now_ns, outcome)
        for hold in account.holds:
            self.close_hold(account, hold, now_ns, outcome)
        account.holds = ()

    def tell(self, account: Account, opened: OpenDecision, now_ns: int, outcome: Outcome, **sides: Any) -> None:
        """A verdict falls."""
        is_miss = bool(sides.get("again_tokens") and sides.get("cause"))
        verdict = Verdict(
            number=opened.number,
            kind=opened.kind,
            program_id=account.program_id,
            opened_ns=opened.at_ns,
            closed_ns=now_ns,
            outcome=outcome,
            tenant=account.tenant,
            program_class=account.program_class,
            tool=account.tool,
            client=account.client,
            computed_tokens=self.sums.client(account.client).computed_tokens if is_miss else 0,
            context_tokens=account.context_tokens,
            **sides,
        )
        self.sums.add(verdict)
        self._on_verdict(verdict)
