"""What each decision cost and brought: the regret ledger and its verdicts."""

from controlplane.core.model.causes import Cause
from controlplane.core.regret.hindsight import Hindsight, Least
from controlplane.core.regret.sentences import LEAST_JUDGED, Sentence, amount, judged, net, note_on, sentences
from controlplane.core.regret.sums import Prefill, Sums, Total, total_of
from controlplane.core.regret.tracker import RegretLedger
from controlplane.core.regret.verdict import CLIENT, KINDS, NO_DECISION, Outcome, Verdict

__all__ = [
    "CLIENT",
    "KINDS",
    "LEAST_JUDGED",
    "NO_DECISION",
    "Cause",
    "Hindsight",
    "Least",
    "Outcome",
    "Prefill",
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
