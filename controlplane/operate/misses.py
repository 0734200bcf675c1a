"""``penstock misses``: what was computed again and why, the client's part and the scheduler's, from verdicts."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from controlplane.core.model.causes import CLIENT_CAUSES, Cause, side_of
from controlplane.core.regret import Verdict, amount
from controlplane.core.regret.descriptions import CAUSES
from controlplane.operate.printing import echo, print_json, print_table
from controlplane.operate.regret import read_regret

_NONE = "(none)"
_BAR = 20  # characters of a whole


BY: dict[str, Callable[[Verdict], str]] = {
    "cause": lambda verdict: verdict.cause,
    "client": lambda verdict: verdict.client or _NONE,
    "tool": lambda verdict: verdict.tool or _NONE,
    "side": lambda verdict: side_of(verdict.cause),
    "tenant": lambda verdict: verdict.tenant or _NONE,
    "program": lambda verdict: verdict.program_id,
}
"""What misses can be summed up by."""


@dataclass(slots=True, kw_only=True)
class Row:
    """Like misses. ``seconds``: an engine's, of prefill. ``causes`` in tokens, ``places`` in misses."""

    name: str
    misses: int = 0
    tokens: int = 0
    client_tokens: int = 0
    seconds: float = 0.0
    share_ratio: float = 0.0  # of all tokens that were computed again
    causes: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)

    def add(self, verdict: Verdict) -> None:
        self.misses += 1
        self.tokens += verdict.again_tokens
        self.client_tokens += verdict.again_tokens * (verdict.cause in CLIENT_CAUSES)
        self.seconds += verdict.again_s
        self.causes[verdict.cause] += verdict.again_tokens
        self.places[verdict.where] += bool(verdict.where)


def read_misses(paths: Iterable[Path]) -> list[Verdict]:
    """From decision logs and recorded runs. Raises ``ConfigError`` for what is neither, or is not there."""
    judged = (each.verdict for each in read_regret(paths).judged)
    return [verdict for verdict in judged if verdict.again_tokens and verdict.cause]


def rows(misses: Iterable[Verdict], by: str) -> list[Row]:
    """One for each group, the one with most tokens first."""
    groups: dict[str, Row] = {}
    for verdict in misses:
        name = str(BY[by](verdict))
        groups.setdefault(name, Row(name=name)).add(verdict)
    whole = sum(row.tokens for row in groups.values())
    for row in groups.values():
        row.share_ratio = row.tokens / whole
    return sorted(groups.values(), key=lambda row: -row.tokens)


def computed(misses: Iterable[Verdict]) -> dict[str, int]:
    """Tokens that were prefilled for each client's turns, from its first miss to its last.

    Each ledger counts from 0: where a count falls, a new one began.
    """
    found: Counter[str] = Counter()
    last: dict[str, int] = {}
    for verdict in misses:
        before = last.get(verdict.client, verdict.computed_tokens - verdict.again_tokens)
        now = last[verdict.client] = verdict.computed_tokens
        found[verdict.client] += now - before if now >= before else now
    return dict(found)


def as_plain(misses: Sequence[Verdict], found: Sequence[Row], by: str) -> dict[str, Any]:
    """For ``--json``."""
    return {"by": by, "rows": [asdict(row) for row in found], "computed_tokens": computed(misses)}


def show_misses(misses: Sequence[Verdict], found: Sequence[Row], by: str, *, json: bool) -> None:
    """Print the sums, a bar for each, and what clients make of it in sentences."""
    if json:
        print_json(as_plain(misses, found, by))
        return
    head = (by, "misses", "computed again", "share", "", "client's part", "prefill", "mostly")
    print_table(head, [_cells(row, by) for row in found])
    for line in notes(misses):
        echo(line)


def _cells(row: Row, by: str) -> tuple[str, ...]:
    (cause, _), *_ = row.causes.most_common(1)
    place = next((place for place, count in row.places.most_common(1) if count), "")
    why = place if by == "cause" else f"{cause} {place}".rstrip()
    return (
        row.name,
        f"{row.misses:,}",
        f"{row.tokens:,}",
        f"{row.share_ratio:.0%}",
        "█" * max(1, round(row.share_ratio * _BAR)),
        f"{row.client_tokens / row.tokens:.0%}",
        amount(row.seconds),
        why or (CAUSES[Cause(cause)] if by == "cause" else ""),
    )


def notes(misses: Sequence[Verdict]) -> Iterator[str]:
    """For each client, what share of its prefill was computed again since it changed its own prompts, and why."""
    whole = computed(misses)
    for row in rows(misses, "client"):
        of = whole.get("" if row.name == _NONE else row.name, 0)
        if row.client_tokens and of:
            mine = Counter({cause: tokens for cause, tokens in row.causes.items() if cause in CLIENT_CAUSES})
            (cause, _), *_ = mine.most_common(1)
            share = min(1.0, row.client_tokens / of)
            yield f"{row.name}: {share:.0%} of its prefill is computed again, as {CAUSES[Cause(cause)]}."
    if not misses:
        yield "No turn has missed what had been computed for it."
