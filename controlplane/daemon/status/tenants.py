"""Tenants as an operator sees them: what each holds and has had, by weight, and what is left of its budgets."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.ledger import Ledger
from controlplane.core.ledger.accounts import Use
from controlplane.core.model.tenancy import DEFAULT_TENANT, Tenant
from controlplane.core.scheduling.fairness import held_by_tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRow:
    """One tenant. The fields are those of the message, in ``proto/penstock/v1/control.proto``."""

    tenant: str
    weight: float
    share: float
    active: int
    waiting: int
    kv_blocks: int
    kv_token_s: float
    kv_ratio: float
    turns: int
    spent_ratio: float
    window_ns: int
    spent: str
    refused: int
    given_back: int


def tenant_rows(ledger: Ledger, now_ns: int) -> tuple[TenantRow, ...]:
    """Each tenant that has a table, and ``default``; none without tables. O(programs with a slot or in line)."""
    accounts, programs = ledger.accounts, ledger.programs
    if not accounts.tenancy.on:
        return ()
    held = held_by_tenant(ledger)
    active = Counter(root.payer for name in programs.active if not (root := programs.by_name[name]).parent_id)
    waiting = Counter(programs.by_name[name].payer for name in programs.queue)
    names = dict.fromkeys([*accounts.tenancy.named, DEFAULT_TENANT])
    total = sum(use.kv_token_s for use in accounts.by_tenant.values())
    rows = []
    for name in names:
        tenant, use = accounts.tenancy.of(name), accounts.by_tenant.get(name) or Use()
        lasts = now_ns < use.window_ends_ns
        rows.append(
            TenantRow(
                tenant=name,
                weight=tenant.weight,
                share=tenant.share,
                active=active[name],
                waiting=waiting[name],
                kv_blocks=held[name],
                kv_token_s=use.kv_token_s,
                kv_ratio=use.kv_token_s / total if total else 0.0,
                turns=use.turns,
                spent_ratio=_spent_ratio(tenant, use) if lasts else 0.0,
                window_ns=use.window_ends_ns - now_ns if lasts else 0,
                spent=accounts.spent(name, now_ns),
                refused=use.refused,
                given_back=use.given_back,
            )
        )
    return tuple(rows)


def jain_index(rows: Sequence[TenantRow]) -> float:
    """Jain's index over what each has had for its weight, of those that asked for anything; 0 where none did."""
    values = [row.kv_token_s / row.weight for row in rows if row.turns]
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


def _spent_ratio(tenant: Tenant, use: Use) -> float:
    memory = use.window_kv_token_s / tenant.kv_token_s if tenant.kv_token_s else 0.0
    return max(memory, use.window_turns / tenant.turns if tenant.turns else 0.0)
