"""What each tenant and each run has had of the KV memory, and who has spent a budget.

KV memory times time is what programs compete for: a context of so many tokens, held for so many seconds. A program
is charged for its own part of the pool while it holds a slot and does not lend its room. Children are charged to
their root, and the root's tenant.

**Paper**: Justitia (arXiv 2510.17015): the cost of a task is memory x time, and tasks are served by virtual time.
Where we deviate: what was predicted when a program was let in is a pledge only, and gives way to what it then held.
"""

from dataclasses import dataclass, field

from controlplane.core.ledger.persisted import persisted
from controlplane.core.model.tenancy import DEFAULT_TENANT, Tenancy
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, Program, seconds

_MOST_STOPPED = 16_384  # runs that were stopped and may ask again; whichever was stopped first is forgotten


@dataclass(slots=True, kw_only=True)
class Use:
    """One tenant's account. Virtual time counts KV tokens x seconds for each unit of weight."""

    kv_token_s: float = 0.0  # that its programs have held, in all
    turns: int = 0  # that engines took, in all
    virtual_time: float = 0.0
    pledged_token_s: float = 0.0  # of programs that have a slot: expected, and not yet held
    waits: bool = False  # it had programs in the queue when slots were given last
    window_ends_ns: int = 0  # 0: no window has begun
    window_kv_token_s: float = 0.0
    window_turns: int = 0
    refused: int = 0  # turns or runs that a spent budget cost, in all
    given_back: int = 0  # slots of others that it got back of its share, in all
    freed_blocks: int = 0  # of those, since it got a slot last


@dataclass(slots=True, kw_only=True, eq=False)
class Accounts:
    """Every tenant's account, by name. ``tenancy`` is the configuration's, and no snapshot's."""

    by_tenant: dict[str, Use] = persisted(dict, "tenants")
    stopped: dict[str, str] = persisted(dict)  # runs beyond their budget, and why
    overspent: dict[str, str] = persisted(dict)  # those of which nobody was told yet
    unanswered: dict[str, None] = persisted(dict)  # programs of stopped runs that ask again
    counts_runs: bool = persisted(bool)  # some client has told a budget of its run
    tenancy: Tenancy = field(default_factory=Tenancy)
    spent_now: dict[str, str] = field(default_factory=dict)  # tenants whose budget is, and why, as of the last tick

    @property
    def on(self) -> bool:
        """Whether anything is kept: there are tenants, or runs with a budget of their client's."""
        return self.tenancy.on or self.counts_runs

    @property
    def has_budgets(self) -> bool:
        return self.counts_runs or self.tenancy.has_budgets

    def of(self, tenant: str) -> Use:
        if tenant not in self.by_tenant:
            self.by_tenant[tenant] = Use()
        return self.by_tenant[tenant]

    def virtual_time(self, tenant: str) -> float:
        """What the tenant has had, and what its programs are expected to hold yet, for each unit of weight."""
        use = self.of(tenant)
        return use.virtual_time + use.pledged_token_s / self.tenancy.of(tenant).weight

    def wakes(self, tenant: str) -> None:
        """Its programs wait, and none did before: what it did not ask for meanwhile is not owed to it."""
        use = self.of(tenant)
        others = [
            each for each in self.by_tenant.values() if each is not use and (each.waits or each.pledged_token_s)
        ]
        if others:  # by what was held, not by what is expected: forecasts are wild while little was seen
            use.virtual_time = max(use.virtual_time, min(each.virtual_time for each in others))

    # What is charged

    def hold(self, program: Program, root: Program, tokens: int, now_ns: int) -> None:
        """The program has held so many tokens of its own since it was metered last; 0: it held no slot."""
        since_ns, program.metered_at_ns = program.metered_at_ns, now_ns
        if not tokens or not since_ns or now_ns <= since_ns:
            return
        token_s = tokens * (now_ns - since_ns) / NANOSECONDS_PER_SECOND
        use = self._in_window(root.payer, now_ns)
        use.kv_token_s += token_s
        use.window_kv_token_s += token_s
        use.virtual_time += token_s / self.tenancy.of(root.payer).weight
        self._fulfil(root, token_s)
        root.kv_token_s += token_s
        self._look_at(root)

    def turn(self, root: Program, now_ns: int) -> None:
        use = self._in_window(root.payer, now_ns)
        use.turns += 1
        use.window_turns += 1
        root.turns_begun += 1

    def turn_ended(self, root: Program) -> None:
        """A turn of the run has ended: one that was its last by its budget ran to its end."""
        if root.program_id in self.stopped:
            self.overspent[root.program_id] = self.stopped[root.program_id]  # it slipped through: say it again
        self._look_at(root)

    def pledge(self, root: Program, token_s: float) -> None:
        """The run got a slot, and is expected to hold so much until its end."""
        self.withdraw(root)
        root.pledged_token_s = token_s
        use = self.of(root.payer)
        use.pledged_token_s += token_s
        use.freed_blocks = 0

    def withdraw(self, root: Program) -> None:
        """The run has no slot any more: what it did not hold of its pledge it does not hold now."""
        if root.pledged_token_s:
            self._fulfil(root, root.pledged_token_s)

    def _fulfil(self, root: Program, token_s: float) -> None:
        fulfilled = min(token_s, root.pledged_token_s)
        if fulfilled:
            root.pledged_token_s -= fulfilled
            use = self.of(root.payer)
            use.pledged_token_s = max(0.0, use.pledged_token_s - fulfilled)

    # Budgets

    def _in_window(self, tenant: str, now_ns: int) -> Use:
        use = self.of(tenant)
        if now_ns >= use.window_ends_ns:
            use.window_ends_ns = now_ns + seconds(self.tenancy.of(tenant).window_s)
            use.window_kv_token_s, use.window_turns = 0.0, 0
        return use

    def look(self, now_ns: int) -> None:
        """See which tenants have spent a budget. A window that was made shorter meanwhile ends sooner."""
        for name, use in self.by_tenant.items():
            use.window_ends_ns = min(use.window_ends_ns, now_ns + seconds(self.tenancy.of(name).window_s))
        found = ((name, self.spent(name, now_ns)) for name in self.tenancy.named) if self.on else ()
        self.spent_now = {name: why for name, why in found if why}

    def spent(self, tenant: str, now_ns: int) -> str:
        """Which of the tenant's budgets is spent in the window that lasts, in words; empty: none is."""
        limits, use = self.tenancy.of(tenant), self.by_tenant.get(tenant)
        if use is None or now_ns >= use.window_ends_ns:
            return ""
        if limits.kv_token_s and use.window_kv_token_s >= limits.kv_token_s:
            return (
                f"tenant {tenant} has spent its {limits.kv_token_s:,.0f} KV token-seconds in {limits.window_s:g} s"
            )
        if limits.turns and use.window_turns >= limits.turns:
            return f"tenant {tenant} has spent its {limits.turns:,} turns in {limits.window_s:g} s"
        return ""

    def budget(self, root: Program) -> tuple[int, float]:
        """Turns and KV token-seconds that the run may have with its children; 0: any number."""
        limits = self.tenancy.of(root.payer)
        turns = _least(limits.program_turns, root.budget_turns)
        return int(turns), _least(limits.program_kv_token_s, root.budget_kv_token_s)

    def _look_at(self, root: Program) -> None:
        """Whether the run has spent its budget: its tenant's, or less where its client said so."""
        if root.program_id in self.stopped:
            return
        turns, token_s = self.budget(root)
        if turns and root.turns_begun >= turns:
            self._stop(root, f"its run has spent its budget of {turns:,} turns, its children's included")
        elif token_s and root.kv_token_s >= token_s:
            had = f"its run has spent its budget of {token_s:,.0f} KV token-seconds, its children's included"
            self._stop(root, had)

    def _stop(self, root: Program, why: str) -> None:
        self.stopped[root.program_id] = self.overspent[root.program_id] = why
        if len(self.stopped) > _MOST_STOPPED:
            del self.stopped[next(iter(self.stopped))]


def _least(tenants: float, clients: float) -> float:
    """The smaller budget of the two, where 0 is none."""
    return min(tenants, clients) if tenants and clients else tenants or clients


def payer_of(tenancy: Tenancy, account: str) -> str:
    """The tenant that a program is charged to; ``default`` where no table is there."""
    return tenancy.name_of(account) if tenancy.on else DEFAULT_TENANT
