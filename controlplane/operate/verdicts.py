"""A verdict in words: what happened, why, and both sides of the decision."""

from controlplane.core.regret import Cause, Outcome, Verdict
from controlplane.operate.printing import duration

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
CAUSES = {
    Cause.TTL_SHORT: "it came back after its pin had ended",
    Cause.HELD: "it was held until its pin had ended",
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


def sentence(verdict: Verdict) -> str:
    """In one line, its net first."""
    why = f", as {CAUSES[verdict.cause]}" if verdict.cause else ""
    about = "about " if verdict.estimated else ""
    gained = _and([*_gains(verdict), f"{verdict.gain_s:.2f}s"]) if verdict.gain_s else "nothing"
    spent = _and([*_costs(verdict), f"{verdict.cost_s:.2f}s"]) if verdict.cost_s else "nothing"
    after = duration(verdict.closed_ns - verdict.opened_ns) or "0.0s"
    return (
        f"{about}{verdict.net_s:+.2f}s: after {after} {_HAPPENED[verdict.outcome]}{why}; "
        f"gained {gained}; cost {spent}"
    )


def _gains(verdict: Verdict) -> list[str]:
    parts = []
    if verdict.hit_tokens:
        found = "tokens that others kept" if verdict.kind == "hold" else "tokens found"
        parts.append(f"{verdict.hit_tokens:,} {found}")
    if verdict.freed_token_s:
        parts.append(f"{verdict.freed_token_s:,.0f} token-seconds of memory")
    return parts


def _costs(verdict: Verdict) -> list[str]:
    parts = []
    if verdict.again_tokens:
        parts.append(f"{verdict.again_tokens:,} tokens computed again")
    if verdict.held_token_s:
        parts.append(f"{verdict.held_token_s:,.0f} token-seconds of memory")
    if verdict.wait_s:
        parts.append(f"{verdict.wait_s:.1f}s of waiting")
    return parts


def _and(parts: list[str]) -> str:
    """What it is in tokens, and then in seconds."""
    return parts[0] if len(parts) == 1 else f"{' and '.join(parts[:-1])} ({parts[-1]})"
