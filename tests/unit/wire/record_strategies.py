"""Hypothesis strategies for every event and command of core, drawn from their fields."""

import typing
from collections.abc import Sequence
from dataclasses import MISSING, fields

from hypothesis import strategies as st

from controlplane.core.model.commands import COMMAND_TYPES, Command
from controlplane.core.model.events import EVENT_TYPES, Event
from controlplane.core.model.text import sanitize

names = st.text(min_size=1, max_size=20).map(sanitize)
counts = st.integers(min_value=0, max_value=2**53 - 1)
ratios = st.floats(0, 1)
measures = st.floats(min_value=0, allow_infinity=False, allow_nan=False)

_SPECIAL: dict[str, st.SearchStrategy[object]] = {
    "tool_calls": st.integers(min_value=-1, max_value=2**31),
    "block_tokens": st.integers(min_value=1, max_value=2**31),
    "priority": st.integers(min_value=-(2**63), max_value=2**63 - 1),
}


def records(kind: type, **fixed: object) -> st.SearchStrategy[typing.Any]:
    """Records of ``kind``, every field drawn but ``fixed`` ones."""
    hints = typing.get_type_hints(kind)
    drawn: dict[str, st.SearchStrategy[object]] = {}
    for field in fields(kind):
        if field.name in fixed:
            drawn[field.name] = st.just(fixed[field.name])
        elif field.name in _SPECIAL and field.default != 0:  # a reply that was read has a number of calls
            drawn[field.name] = _SPECIAL[field.name]
        elif hints[field.name] is str:
            drawn[field.name] = names if field.default is MISSING else st.one_of(st.just(""), names)
        elif typing.get_origin(hints[field.name]) is Sequence:
            (item,) = typing.get_args(hints[field.name])
            drawn[field.name] = st.lists(names if item is str else records(item), max_size=3).map(tuple)
        elif hints[field.name] is bool:
            drawn[field.name] = st.booleans()
        elif hints[field.name] is float:
            drawn[field.name] = ratios if field.name.endswith("_ratio") else measures
        else:
            drawn[field.name] = counts
    return st.builds(kind, **drawn)


def events(**fixed: object) -> st.SearchStrategy[Event]:
    """Any event."""
    return st.one_of(*(records(kind, **fixed) for kind in EVENT_TYPES))


def commands() -> st.SearchStrategy[Command]:
    """Any command."""
    return st.one_of(*(records(kind) for kind in COMMAND_TYPES))
