"""A publisher's state that is too large for one message: cut where it is sent, joined where it is read."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from controlplane.core.model.events import PublisherState

STATE_LISTS = ("held_turns", "open_turns", "open_tools", "grants", "pins")
_ENTRY_BYTES = 64  # of an entry's encoding, beside its names: numbers, and the lengths of all


def in_parts(state: PublisherState, most_bytes: int) -> Iterator[PublisherState]:
    """The state itself, or parts that are encoded to about ``most_bytes`` each; never an entry in two."""
    taken: dict[str, Any] = {name: [] for name in STATE_LISTS}
    part, size = 0, 0
    for name in STATE_LISTS:
        for entry in getattr(state, name):
            entry_bytes = _size(entry)
            if size and size + entry_bytes > most_bytes:
                yield replace(state, **taken, part=part, more=True)
                taken, part, size = {name: [] for name in STATE_LISTS}, part + 1, 0
            taken[name].append(entry)
            size += entry_bytes
    yield replace(state, **taken, part=part) if part else state


def joined(parts: Sequence[PublisherState]) -> PublisherState:
    """The state whose parts these are. It is numbered as its last part."""
    lists: dict[str, Any] = {
        name: tuple(one for part in parts for one in getattr(part, name)) for name in STATE_LISTS
    }
    return replace(parts[-1], **lists, part=0, more=False)


def _size(entry: Any) -> int:
    texts = (getattr(entry, field.name) for field in fields(entry))
    names = (text for text in texts if isinstance(text, str))
    return _ENTRY_BYTES + sum(len(name.encode("utf-8", "surrogatepass")) for name in names)
