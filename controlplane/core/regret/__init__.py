"""What each decision cost and brought: the regret ledger and its verdicts."""

from controlplane.core.regret.hindsight import Hindsight, Least
from controlplane.core.regret.sums import Sums, Total, total_of
from controlplane.core.regret.tracker import RegretLedger
from controlplane.core.regret.verdict import KINDS, NO_DECISION, Cause, Outcome, Verdict

__all__ = [
    "KINDS",
    "NO_DECISION",
    "Cause",
    "Hindsight",
    "Least",
    "Outcome",
    "RegretLedger",
    "Sums",
    "Total",
    "Verdict",
    "total_of",
]
