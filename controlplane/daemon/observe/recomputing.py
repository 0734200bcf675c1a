"""Clients that have much of their prefill computed again since they change their own prompts: who, and why."""

from collections import Counter, deque
from typing import Any

from controlplane.core.model.causes import CLIENT_CAUSES, Cause
from controlplane.core.model.types import seconds
from controlplane.core.regret import Sums
from controlplane.core.regret.descriptions import CAUSES

_EVERY_NS = seconds(60)
_LOOKS = 30  # that are compared: half an hour
_LEAST_TOKENS = 50_000  # of prefill in that time: less is no load
_LEAST_RATIO = 0.25
_Counts = dict[str, tuple[int, Counter[Cause]]]  # by client: tokens computed, and again by cause


class Recomputing:
    """Looks at the sums once a minute, and compares them with those of half an hour before."""

    def __init__(self) -> None:
        self._looks: deque[tuple[int, _Counts]] = deque(maxlen=_LOOKS)

    def look(self, sums: Sums, now_ns: int) -> str | None:
        """What is found, in a sentence for each client, empty for nothing; None where it is not time yet."""
        if self._looks and now_ns - self._looks[-1][0] < _EVERY_NS:
            return None
        now = {name: (each.computed_tokens, _again(each.again)) for name, each in sums.clients.items()}
        before = self._looks[0][1] if self._looks else {}
        self._looks.append((now_ns, now))
        found = (_said(name, *now[name], *before.get(name, (0, Counter()))) for name in sorted(now))
        return "; ".join(filter(None, found))


def _again(found: dict[Cause, Any]) -> Counter[Cause]:
    return Counter({cause: each.tokens for cause, each in found.items() if cause in CLIENT_CAUSES})


def _said(name: str, computed: int, again: Counter[Cause], computed_then: int, again_then: Counter[Cause]) -> str:
    computed, again = computed - computed_then, again - again_then
    share = min(1.0, again.total() / computed) if computed >= _LEAST_TOKENS else 0.0
    if share < _LEAST_RATIO:
        return ""
    ((cause, _),) = again.most_common(1)
    return f"{name or 'an unknown client'}: {share:.0%} of prefill is computed again, as {CAUSES[cause]}"
