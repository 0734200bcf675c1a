"""Finds every container that lives as long as the objects it is given, and how long each is."""

import sys
from array import array
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

_OURS = ("controlplane", "engine_hooks")


def sizes(*roots: object) -> Counter[str]:
    """By class and field: how many entries all such containers have together, those of modules included."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    pending: list[tuple[str, Any]] = [("", root) for root in roots]
    for name, module in list(sys.modules.items()):
        if name.startswith(_OURS) and not name.endswith("_pb2"):
            pending += [(f"{name}.{key}", value) for key, value in vars(module).items() if _is_container(value)]
    while pending:
        label, value = pending.pop()
        if id(value) in seen or isinstance(value, str | bytes | int | float | type | ModuleType) or value is None:
            continue
        seen.add(id(value))
        pending += _inside(label, value)
        if _is_container(value) or isinstance(value, array):
            found[label] += len(value)
    return found


def _is_container(value: object) -> bool:
    return isinstance(value, dict | list | set | frozenset | deque | tuple)


def _inside(label: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{label}[]", each) for each in (*value.keys(), *value.values()))
    elif _is_container(value):
        yield from ((f"{label}[]", each) for each in value)
    elif isinstance(value, MethodType):
        yield label, value.__self__
    elif isinstance(value, partial):
        yield from ((label, each) for each in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, FunctionType):
        yield from ((label, cell.cell_contents) for cell in value.__closure__ or () if _is_set(cell))
    if not isinstance(value, FunctionType):
        for name in _attributes(value):
            yield f"{type(value).__name__}.{name}", getattr(value, name, None)


def _attributes(value: object) -> set[str]:
    slots = {name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())}
    return slots | set(getattr(value, "__dict__", ()))


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
