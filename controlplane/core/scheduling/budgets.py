"""Who is refused, since a budget is spent: runs for good, and a tenant's turns until its next window."""

from collections.abc import Iterator

from controlplane.core.ledger import Ledger
from controlplane.core.model.commands import Refuse
from controlplane.core.model.tenancy import Exhausted


def refusals(ledger: Ledger, now_ns: int, *, interval_ended: bool) -> Iterator[Refuse]:
    """Runs and tenants that have spent a budget, and are not to wait for another one."""
    accounts, programs = ledger.accounts, ledger.programs
    if not accounts.on:
        accounts.spent_now.clear()  # a budget may have been spent, and all tenants taken out of the configuration
        return
    if interval_ended and accounts.has_budgets:  # what is held in a long turn or gap counts, too
        for name in programs.active:
            programs.meter(programs.by_name[name], now_ns)
    accounts.look(now_ns)
    over = {name: accounts.stopped.get(name, "") for name in accounts.overspent}
    known = (programs.by_name[name] for name in accounts.unanswered if name in programs.by_name)
    over |= {each.program_id: accounts.stopped.get(each.root_id, "") for each in known}
    accounts.overspent.clear()
    accounts.unanswered.clear()
    for name, why in over.items():
        if name in programs.by_name:
            accounts.of(programs.by_name[name].payer).refused += 1
            yield Refuse(program_id=name, reason=why or "its run was stopped")
    for tenant, why in accounts.spent_now.items():
        if accounts.tenancy.of(tenant).exhausted is not Exhausted.REFUSE:
            continue
        use = accounts.of(tenant)
        for name in [name for name in programs.queue if programs.by_name[name].payer == tenant]:
            use.refused += 1
            yield Refuse(program_id=name, ttl_ns=max(1, use.window_ends_ns - now_ns), reason=why)
