"""What a turn found of its program's context when it came back, and what that is worth."""

from dataclasses import dataclass

from controlplane.core.model import events as ev
from controlplane.core.model.causes import Cause
from controlplane.core.model.places import place_of
from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.core.regret.accounts import Account, OpenDecision, Wanted
from controlplane.core.regret.prices import Prices
from controlplane.core.regret.verdict import Outcome

LEAST_LOST_TOKENS = 64  # fewer are a block's rest: they are summed up, but nobody missed a context
_SLACK_RATIO = 0.1  # of a prompt: as exactly is known from bytes which token a difference is at


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """What a turn found of its program's context."""

    scheduled_ns: int = 0
    outcome: Outcome = Outcome.UNKNOWN
    cause: Cause = Cause.NONE
    hit_tokens: int = 0  # on the device, of its own
    again_tokens: int = 0  # for which the client is no reason
    client_tokens: int = 0  # likewise computed again, as the client changed what was before them
    client_cause: Cause = Cause.NONE
    where: str = ""
    gone_ratio: float = 1.0  # of its context: what was not on the device
    hit_s: float = 0.0  # to compute what was found
    again_s: float = 0.0  # to compute what was not, or to load it
    paid_s: float = 0.0
    best_s: float = 0.0


NOTHING = Return()
"""Where no turn came, or it tells of another decision."""


def found_by(
    account: Account, event: ev.FirstToken, now_ns: int, prices: Prices, places: frozenset[str] | None
) -> Return:
    """What the turn found whose first token came. ``places``: a fleet's engines; None where nobody lists them."""
    place, decision = place_of(event.publisher), account.last_decision()
    scheduled_ns = now_ns - event.prefill_ns if event.prefill_ns else account.submitted_ns or now_ns
    wanted = account.wanted(event.prompt_tokens)
    again_tokens, client_tokens, client_cause = _whose(account, event, wanted, prices)
    reusable_tokens = wanted.kept_tokens
    hit_tokens = max(0, min(event.cached_tokens, reusable_tokens) - account.prefix_tokens - event.loaded_tokens)
    again_s = prices.computing_s(again_tokens, event.cached_tokens) + prices.loading_s(event)
    hit_s = prices.computing_s(hit_tokens, account.prefix_tokens)
    own_tokens = max(0, reusable_tokens - account.prefix_tokens)
    gap_s = as_s(max(0, scheduled_ns - account.idle_since_ns))
    held_s = pinned_s(decision, scheduled_ns) if decision is not None else 0.0
    token_s = hit_tokens * gap_s + max(0, own_tokens - hit_tokens) * held_s
    paid_s = prices.room_s(token_s, place) + again_s
    best_s = min(
        prices.room_s(own_tokens * gap_s, place), prices.computing_s(own_tokens, account.prefix_tokens), paid_s
    )
    outcome, cause = Outcome.HIT, Cause.NONE
    if not reusable_tokens or (wanted.cause and not own_tokens and not again_tokens):
        outcome = Outcome.REWRITTEN
    elif again_tokens >= LEAST_LOST_TOKENS or event.loaded_tokens:
        gone = places is not None and account.place not in places
        outcome = Outcome.MISS if again_tokens >= LEAST_LOST_TOKENS else Outcome.HIT
        cause = account.why_missed(decision, event.publisher, scheduled_ns, gone=gone)
    return Return(
        scheduled_ns=scheduled_ns,
        outcome=outcome,
        cause=cause,
        hit_tokens=hit_tokens,
        again_tokens=again_tokens,
        client_tokens=client_tokens,
        client_cause=client_cause,
        where=wanted.where,
        gone_ratio=min(1.0, (again_tokens + event.loaded_tokens) / reusable_tokens) if reusable_tokens else 1.0,
        hit_s=hit_s,
        again_s=again_s,
        paid_s=paid_s,
        best_s=best_s,
    )


def _whose(account: Account, event: ev.FirstToken, wanted: Wanted, prices: Prices) -> tuple[int, int, Cause]:
    """Tokens that are computed again: those that the scheduler answers for, the client's, and that one's cause."""
    lost_tokens = max(0, wanted.had_tokens - event.cached_tokens)
    slack_tokens = max(LEAST_LOST_TOKENS, prices.pool(place_of(event.publisher)).block_tokens)
    if account.without_reply(event.cached_tokens, wanted.had_tokens, slack_tokens):
        return (0, lost_tokens, Cause.REPLY) if lost_tokens >= LEAST_LOST_TOKENS else (lost_tokens, 0, Cause.NONE)
    if not wanted.cause:
        return lost_tokens, 0, Cause.NONE
    rest_tokens = max(0, wanted.kept_tokens - event.cached_tokens)
    if rest_tokens <= max(slack_tokens, _SLACK_RATIO * wanted.had_tokens):
        rest_tokens = 0
    return rest_tokens, lost_tokens - rest_tokens, wanted.cause


def as_s(duration_ns: int) -> float:
    """Seconds."""
    return duration_ns / NANOSECONDS_PER_SECOND


def pinned_s(decision: OpenDecision, until_ns: int) -> float:
    """For how long a pin held; 0 of another word."""
    if decision.kind != "retain":
        return 0.0
    return as_s(max(0, min(decision.ended_ns or until_ns, decision.until_ns, until_ns) - decision.at_ns))


def freed_s(decision: OpenDecision, until_ns: int) -> float:
    """For how long a word freed a context: a release no longer than its pin would have held."""
    end_ns = min(decision.ended_ns or until_ns, until_ns)
    if decision.kind == "release":
        end_ns = min(end_ns, decision.until_ns)
    return as_s(max(0, end_ns - decision.at_ns))
