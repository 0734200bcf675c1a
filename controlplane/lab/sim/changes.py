"""Engines that come and go while a simulated run lasts."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.types import seconds

DIE, DRAIN, JOIN, FLUSH = "die", "drain", "join", "flush"
_HELP = 'expected "die:ENGINE:AT_S", "drain:...", "join:..." or "flush:...", engines counted from 1'


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One engine dies with its turns and its memory, takes no program any more, or joins with an empty memory.

    One that joins before it died was not there until then; one that drains keeps the turns that it has. One that
    flushes has new weights: its cached contexts are gone, and what runs goes on.
    """

    kind: str
    engine: int
    at_ns: int


def parse_changes(texts: Sequence[str], replicas: int) -> tuple[Change, ...]:
    """Read ``die:2:600`` and its like, in the order of time.

    Raises ``ConfigError``, also where for a while no engine would take programs.
    """
    changes = tuple(sorted((_parse(text, replicas) for text in texts), key=lambda change: change.at_ns))
    taking = serving_at_first(changes, replicas)
    if not taking:
        raise ConfigError("changes: no engine is there at the start", field="changes")
    here = set(taking)
    for change in changes:
        if (change.engine in here) is (change.kind == JOIN):
            there = "is there already" if change.kind == JOIN else "is not there"
            raise ConfigError(
                f"changes: engine {change.engine} {there} at {change.at_ns / 1e9:g}s", field="changes"
            )
        if change.kind == JOIN:
            here.add(change.engine)
            taking.add(change.engine)
        elif change.kind != FLUSH:
            taking.discard(change.engine)
            if change.kind == DIE:
                here.discard(change.engine)
        if not taking:
            raise ConfigError(f"changes: no engine takes programs after {change.at_ns / 1e9:g}s", field="changes")
    return changes


def serving_at_first(changes: Sequence[Change], replicas: int) -> set[int]:
    """The engines that do not begin by joining."""
    first: dict[int, str] = {}
    for change in changes:
        first.setdefault(change.engine, change.kind)
    return {number for number in range(1, replicas + 1) if first.get(number) != JOIN}


def _parse(text: str, replicas: int) -> Change:
    kind, *values = text.split(":")
    try:
        if kind in (DIE, DRAIN, JOIN, FLUSH) and len(values) == 2:
            engine, at_s = int(values[0]), float(values[1])
            if 1 <= engine <= replicas and 0 <= at_s < 1e9:
                return Change(kind=kind, engine=engine, at_ns=seconds(at_s))
    except ValueError:
        pass
    raise ConfigError(f"changes: {_HELP} up to {replicas}, got {text!r}", field="changes")
