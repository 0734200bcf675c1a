"""Demand that is held back: what the programs that wait for a slot ask for, for whoever adds engines.

A queue's length says how many wait and not for how much: one program of a hundred turns and a long context is worth
many short ones. KV is what they wait for, and each will hold its own until it ends. So held demand is the KV of the
turns that wait, and KV times time: what the programs are expected to hold from now to their ends, by the forecast
that admission goes by. An engine with a pool of P tokens serves P token-seconds a second (docs/adr/0050).

**Paper**: ThunderAgent §4.2 charges programs by the same product of space and time, for what they held.
"""

from dataclasses import dataclass
from itertools import islice

from controlplane.core.estimators.program_forecast import ProgramForecaster
from controlplane.core.estimators.workload import as_seconds
from controlplane.core.ledger import Ledger

_MOST_FORECAST = 256  # programs that the forecast looks at; of more a sample stands for all


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedDemand:
    """What waits. All are 0 where nobody does."""

    programs: int = 0  # roots that wait for a slot
    turns: int = 0  # that gates hold
    kv_tokens: int = 0  # that the waiting programs' held turns ask for
    kv_token_s: float = 0.0  # that those will hold until their ends; 0 too while no turn has ended yet
    longest_s: float = 0.0  # for which the first of them has waited
    expected_s: float = 0.0  # that a newcomer would wait now; 0 too while too few programs have ended
    promised_s: float = 0.0  # that newcomers were expected to wait, on average of the latest that were let in
    missed_s: float = 0.0  # by how much that was wrong, on average


def queued_demand(ledger: Ledger, now_ns: int) -> QueuedDemand:
    """Sums over the queue; the same cost however long that is."""
    programs, queue, block_tokens = ledger.programs.by_name, ledger.programs.queue, ledger.estimates.block_tokens
    departures = ledger.estimates.departures
    promised_s, missed_s = as_seconds(round(departures.promised.value)), as_seconds(round(departures.missed.value))
    if not queue:
        return QueuedDemand(turns=len(ledger.gates.held), promised_s=promised_s, missed_s=missed_s)
    forecaster = ProgramForecaster(ledger.estimates)
    every = max(1, len(queue) // _MOST_FORECAST)
    asked = [forecaster.left(programs[name])[0] for name in islice(queue, 0, None, every)]
    left = sum(asked) * len(queue) / len(asked)  # in blocks x lifetimes
    since_ns = programs[next(iter(queue))].queued_at_ns or now_ns
    return QueuedDemand(
        programs=len(queue),
        turns=len(ledger.gates.held),
        kv_tokens=ledger.programs.charges.queued_blocks * block_tokens,
        kv_token_s=left * block_tokens * as_seconds(round(forecaster.lifetime_ns)),
        longest_s=as_seconds(max(0, now_ns - since_ns)),
        expected_s=as_seconds(round((len(queue) + 1) * departures.each_ns)),
        promised_s=promised_s,
        missed_s=missed_s,
    )
