"""What decisions cost and gained, in sentences: both sides of each kind, by turn or by context, in units that fit.

A sum of waits says nothing alone: whoever waits lets another one run. So holds, pauses and admissions are one
account here: what those who waited lost, and what those who went ahead, and their contexts, were spared.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.core.regret.sums import Sums, Total
from controlplane.core.regret.verdict import CLIENT, NO_DECISION, Outcome

LEAST_JUDGED = 20  # fewer are an accident
_OPEN = {Outcome.REJECTED, Outcome.UNKNOWN}  # nothing shows what came of the decision
_LEAST_S = 0.05  # less is no side that one would name

_WHOEVER_WAITS = (
    "Where more is asked for than the engine can run somebody waits, gate or none: only penstock what-if or a "
    "shadow tells whether another setting would do better."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """``net_s``: of each turn or context; 0 where too few were judged, or nobody decided."""

    about: str
    text: str
    judged: int
    net_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """All decisions that are told of in one sentence. ``counted``: of which kinds each is one of them."""

    about: str
    does: str
    what: str
    counted: tuple[str, ...]
    others: tuple[str, ...] = ()
    costs: str
    gains: str
    whose: str = ""


_KINDS = (
    _Kind(
        about="waiting",
        does="Holding a turn",
        what="turn",
        counted=("hold", "pause"),
        others=("admit",),
        costs="recomputing",
        gains="recomputing and memory",
        whose="others ",
    ),
    _Kind(
        about="pins",
        does="Pinning a context",
        what="pin",
        counted=("retain",),
        costs="memory and recomputing",
        gains="recomputing",
    ),
    _Kind(
        about="contexts given up",
        does="Giving a context up",
        what="context",
        counted=("release", "demote", "discard"),
        costs="recomputing",
        gains="memory",
    ),
    _Kind(
        about="moves", does="Moving a program", what="move", counted=("place",), costs="recomputing", gains="memory"
    ),
)


def amount(value_s: float) -> str:
    """Seconds in the unit that fits: ``3.1 s``, ``12 min``, ``1.4 h``."""
    for unit_s, unit in ((3600, "h"), (60, "min")):
        if abs(value_s) >= unit_s:
            value = value_s / unit_s
            return f"{value:,.1f} {unit}" if abs(value) < 10 else f"{value:,.0f} {unit}"
    return f"{value_s:.1f} s" if abs(value_s) >= _LEAST_S else f"{value_s:.2f} s"


def net(value_s: float) -> str:
    """As ``amount``, with its sign."""
    return f"{'-' if value_s < 0 else '+'}{amount(abs(value_s))}"


def judged(sums: Sums, kinds: Iterable[str]) -> int:
    """How many decisions of these kinds are known in what came of them."""
    return sum(
        total.count for (kind, outcome, _), total in sums.totals.items() if kind in kinds and outcome not in _OPEN
    )


def sentences(sums: Sums) -> list[Sentence]:
    """One for each kind of decision that there was."""
    found = [_sentence(kind, sums) for kind in _KINDS if _total(sums, kind.counted).count]
    missed = _total(sums, (NO_DECISION,))
    if missed.again_tokens:
        of = f"{missed.count:,} contexts" if missed.count > 1 else "a context"
        lost = f"{amount(missed.cost_s)} of recomputing in all: {missed.again_tokens:,} tokens"
        found.append(Sentence(about="undecided", text=f"Leaving {of} alone cost {lost}", judged=missed.count))
    found += _of_clients(sums)
    return found


def _of_clients(sums: Sums) -> list[Sentence]:
    """What clients had computed again themselves; the two that had most are named."""
    changed = _total(sums, (CLIENT,))
    if not changed.again_tokens:
        return []
    worst = sorted(sums.clients.items(), key=lambda each: -each[1].client_tokens)[:2]
    shares = [
        f"{name or 'an unknown client'} {each.client_tokens / each.computed_tokens:.0%} of its prefill"
        for name, each in worst
        if each.client_tokens and each.computed_tokens >= each.client_tokens
    ]
    of = f", {' and '.join(shares)}" if shares else ""
    lost = f"{amount(changed.cost_s)} of recomputing in all: {changed.again_tokens:,} tokens{of}"
    turns = f"{changed.count:,} turns" if changed.count > 1 else "a turn"
    text = f"Clients that changed the prompt of {turns} cost {lost}"
    return [Sentence(about="clients", text=text, judged=changed.count)]


def note_on(said: Iterable[Sentence]) -> str:
    """What to know before one takes the net of waiting for a loss; empty where it is none."""
    return _WHOEVER_WAITS if any(each.about == "waiting" and each.net_s < 0 for each in said) else ""


def _sentence(kind: _Kind, sums: Sums) -> Sentence:
    own, others = _total(sums, kind.counted), _total(sums, kind.others)
    count = judged(sums, kind.counted)
    if count < LEAST_JUDGED:
        return Sentence(about=kind.about, text=f"{kind.does}: too few to judge ({count})", judged=count)
    cost_s, gain_s = (own.cost_s + others.cost_s) / count, (own.gain_s + others.gain_s) / count
    wait_s, spared_s = own.wait_s / count, others.gain_s / count
    costs = _sides((wait_s, "waiting"), (cost_s - wait_s, kind.costs))
    gains = _sides((spared_s, "waiting"), (gain_s - spared_s, kind.gains))
    return Sentence(
        about=kind.about,
        text=f"{kind.does} cost {costs}, and saved {kind.whose}{gains}: {net(gain_s - cost_s)} a {kind.what} "
        f"over {count:,} {kind.what}s",
        judged=count,
        net_s=gain_s - cost_s,
    )


def _sides(*sides: tuple[float, str]) -> str:
    told = [f"{amount(value_s)} of {what}" for value_s, what in sides if value_s >= _LEAST_S]
    return " and ".join(told) or "nothing"


def _total(sums: Sums, kinds: Iterable[str]) -> Total:
    found = Total()
    for (kind, _, _), total in sums.totals.items():
        if kind in kinds:
            found.join(total)
    return found
