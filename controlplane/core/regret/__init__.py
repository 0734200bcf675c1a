"""What each decision cost and brought: the regret ledger and its verdicts."""

from controlplane.core.regret.hindsight import Hindsight, Least
from controlplane.core.regret.sentences import LEAST_JUDGED, Sentence, amount, judged, net, note_on, sentences
from controlplane.core.regret.sums import Sums, Total, total_of
from controlplane.core.regret.tracker import RegretLedger
from controlplane.core.regret.verdict import KINDS, NO_DECISION, Cause, Outcome, Verdict

__all__ = [
    "KINDS",
    "LEAST_JUDGED",
    "NO_DECISION",
    "Cause",
    "Hindsight",
    "Least",
    "Outcome",
    "RegretLedger",
    "Sentence",
    "Sums",
    "Total",
    "Verdict",
    "amount",
    "judged",
    "net",
    "note_on",
    "sentences",
    "total_of",
]
