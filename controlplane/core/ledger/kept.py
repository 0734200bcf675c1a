"""What of the ledger a snapshot holds: the fields that say so where they are declared."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields
from typing import Any, get_type_hints


def kept(make: Callable[[], Any], name: str = "") -> Any:
    """A field that a snapshot holds, under ``name`` where that is not its own; ``make`` gives its first value."""
    return field(default_factory=make, metadata={"kept": name})


def names(noun: type) -> Iterator[tuple[str, str]]:
    """The noun's kept fields, and the names that a snapshot knows them by."""
    for each in fields(noun):
        if "kept" in each.metadata:
            yield each.name, each.metadata["kept"] or each.name


def types(noun: type) -> dict[str, tuple[Any, Callable[[], Any]]]:
    """By the names of a snapshot: the kept fields' types, and what makes their first values."""
    hints, made = get_type_hints(noun), {each.name: each.default_factory for each in fields(noun)}
    return {name: (hints[own], made[own]) for own, name in names(noun)}  # type: ignore[misc]


def values(noun: object) -> dict[str, Any]:
    """By the names of a snapshot: what the kept fields are now."""
    return {name: getattr(noun, own) for own, name in names(type(noun))}


def given(noun: type, kept_values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that make the noun again, as far as ``kept_values`` has them."""
    return {own: kept_values[name] for own, name in names(noun) if name in kept_values}
