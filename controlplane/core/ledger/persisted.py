"""What of the ledger a snapshot holds: the fields that say so where they are declared."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields
from typing import Any, get_type_hints


def persisted(make: Callable[[], Any], name: str = "") -> Any:
    """A field that a snapshot holds, under ``name`` where that is not its own; ``make`` gives its first value."""
    return field(default_factory=make, metadata={"persisted": name})


def names(noun: type) -> Iterator[tuple[str, str]]:
    """The noun's persisted fields, and the names that a snapshot knows them by."""
    for each in fields(noun):
        if "persisted" in each.metadata:
            yield each.name, each.metadata["persisted"] or each.name


def types(noun: type) -> dict[str, tuple[Any, Callable[[], Any]]]:
    """By the names of a snapshot: the persisted fields' types, and what makes their first values."""
    hints, made = get_type_hints(noun), {each.name: each.default_factory for each in fields(noun)}
    return {name: (hints[own], made[own]) for own, name in names(noun)}  # type: ignore[misc]


def values(noun: object) -> dict[str, Any]:
    """By the names of a snapshot: what the persisted fields are now."""
    return {name: getattr(noun, own) for own, name in names(type(noun))}


def restore_kwargs(noun: type, snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that make the noun again, as far as ``snapshot`` has them."""
    return {own: snapshot[name] for own, name in names(noun) if name in snapshot}
