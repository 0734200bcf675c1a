"""What followed from a decision, in words for a person."""

from controlplane.core.regret.verdict import Cause, Outcome, Verdict

_HAPPENED = {
    Outcome.HIT: "its context was there",
    Outcome.MISS: "its context was missed",
    Outcome.ENDED: "no turn followed",
    Outcome.REPLACED: "another decision came first",
    Outcome.REJECTED: "the engine would not",
    Outcome.REWRITTEN: "the agent rewrote its history",
    Outcome.RAN: "its turn ran",
    Outcome.ABANDONED: "its turn was given up",
    Outcome.UNKNOWN: "what followed was not seen",
}
_CAUSES = {
    Cause.TTL_SHORT: "it came back after its pin had ended",
    Cause.HELD: "it waited at the gate until its pin had ended",
    Cause.RECLAIMED: "the engine gave its pin up for others",
    Cause.PRESSURE: "others took its room",
    Cause.RELEASED: "its pin had been released",
    Cause.DEMOTED: "it had been moved below the device",
    Cause.DISCARDED: "it had been freed",
    Cause.PAUSED: "it had been paused",
    Cause.MOVED: "its turn ran on another engine",
    Cause.ENGINE_GONE: "its engine was gone, or had begun anew",
    Cause.RETRACTED: "the engine threw the running turn out",
}


def what_happened(verdict: Verdict) -> str:
    """Its outcome and its cause, as a part of a sentence."""
    why = f", as {_CAUSES[verdict.cause]}" if verdict.cause else ""
    return f"{_HAPPENED[verdict.outcome]}{why}"
