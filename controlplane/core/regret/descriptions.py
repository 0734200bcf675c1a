"""What followed from a decision, in words for a person."""

from controlplane.core.model.causes import Cause
from controlplane.core.regret.verdict import Outcome, Verdict

_HAPPENED = {
    Outcome.HIT: "its context was there",
    Outcome.MISS: "its context was missed",
    Outcome.ENDED: "no turn followed",
    Outcome.REPLACED: "another decision came first",
    Outcome.REJECTED: "the engine would not",
    Outcome.REWRITTEN: "its client asked for another prompt",
    Outcome.RAN: "its turn ran",
    Outcome.ABANDONED: "its turn was given up",
    Outcome.UNKNOWN: "what followed was not seen",
}
CAUSES = {
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
    Cause.FLUSHED: "its engine had emptied its cache, as for new weights",
    Cause.RETRACTED: "the engine threw the running turn out",
    Cause.MODEL: "it asked another model",
    Cause.SYSTEM: "its client changed the system prompt",
    Cause.VOLATILE: "its system prompt has a part that changes by itself",
    Cause.TOOLS: "its client changed a tool",
    Cause.TOOLS_ADDED: "its client added tools",
    Cause.TOOLS_REMOVED: "its client removed tools",
    Cause.TOOLS_REORDERED: "its client sent its tools in another order",
    Cause.EDITED: "its client changed a message",
    Cause.DROPPED: "its client dropped messages",
    Cause.INSERTED: "its client put messages in between",
    Cause.COMPACTED: "its client put a summary in place of messages",
    Cause.RESULT: "its client changed a tool's result",
    Cause.IMAGE: "its client changed an image",
    Cause.REASONING: "its client left earlier reasoning out",
    Cause.REPLY: "its last reply came back in another form, as without its reasoning",
}


def what_happened(verdict: Verdict) -> str:
    """Its outcome and its cause, as a part of a sentence."""
    why = f", as {why_of(verdict)}" if verdict.cause else ""
    return f"{_HAPPENED[verdict.outcome]}{why}"


def why_of(verdict: Verdict) -> str:
    """Its cause, and where in the prompt that is."""
    where = f": {verdict.where}" if verdict.where else ""
    return f"{CAUSES[verdict.cause]}{where}"
