"""A verdict in words: what happened, why, and both sides of the decision."""

from controlplane.core.regret import Verdict
from controlplane.core.regret.words import what_happened
from controlplane.operate.printing import duration


def sentence(verdict: Verdict) -> str:
    """In one line, its net first."""
    about = "about " if verdict.estimated else ""
    gained = _and([*_gains(verdict), f"{verdict.gain_s:.2f}s"]) if verdict.gain_s else "nothing"
    spent = _and([*_costs(verdict), f"{verdict.cost_s:.2f}s"]) if verdict.cost_s else "nothing"
    after = duration(verdict.closed_ns - verdict.opened_ns) or "0.0s"
    return f"{about}{verdict.net_s:+.2f}s: after {after} {what_happened(verdict)}; gained {gained}; cost {spent}"


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
