"""What each of the latest programs did within the last while, for whoever opens the page: a strip of stretches."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nlargest

from controlplane.daemon.observe.journal import Decided, Entry, History, Journal, ToolCall, Turn

_MOST_STRETCHES = 400  # of one program, the latest


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """One program. ``stretches``: what it did, from when, until when; ``pinned`` ones lie beside the others."""

    program_id: str
    began_ns: int
    ended_ns: int  # 0: it has not
    stretches: list[tuple[str, int, int]]


def strips(journal: Journal, wanted: Iterable[str], *, since_ns: int, now_ns: int, most: int) -> list[Strip]:
    """Those that are ``wanted``, and as far as there is room who was heard of last, in the order they began."""
    histories = journal.histories
    chosen = {name: histories[name] for name in wanted if name in histories}
    lately = (each for each in histories.values() if each.seen_ns >= since_ns and each.program_id not in chosen)
    for history in nlargest(max(0, most - len(chosen)), lately, key=lambda each: each.seen_ns):
        chosen[history.program_id] = history
    return [
        _strip(each, since_ns, now_ns) for each in sorted(chosen.values(), key=lambda history: history.began_ns)
    ]


def _strip(history: History, since_ns: int, now_ns: int) -> Strip:
    end_ns = history.ended_ns or now_ns
    found: list[tuple[str, int, int]] = []
    for entry in reversed(history.entries):
        found += [
            (kind, max(began_ns, since_ns), min(ended_ns or end_ns, now_ns))
            for kind, began_ns, ended_ns in _stretches(entry)
            if began_ns and (ended_ns or end_ns) > max(began_ns, since_ns)
        ]
        if len(found) >= _MOST_STRETCHES:
            break
    found.sort(key=lambda stretch: stretch[1])
    return Strip(
        program_id=history.program_id, began_ns=history.began_ns, ended_ns=history.ended_ns, stretches=found
    )


def _stretches(entry: Entry) -> Iterator[tuple[str, int, int]]:
    """What it was, from when and until when; 0: it is not over."""
    if isinstance(entry, Turn):
        ran_ns = entry.submitted_ns or entry.first_token_ns
        yield "held", entry.queued_ns, entry.admitted_ns or ran_ns or entry.ended_ns
        yield "reasoning", ran_ns, entry.ended_ns
    elif isinstance(entry, ToolCall):
        yield "acting", entry.started_ns, entry.ended_ns
    elif isinstance(entry, Decided) and entry.kind == "retain":
        yield "pinned", entry.at_ns, entry.until_ns
