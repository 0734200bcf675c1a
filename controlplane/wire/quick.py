"""Build frozen dataclasses quickly: the decoder makes one per event.

A frozen dataclass sets each field through ``object.__setattr__``, which costs 0.1 us a field: for a
``TurnEnded`` more than all the rest of its decoding (``bench/event_path.py`` prints both). The twin made here
has the same layout and plain attribute stores; the finished record then becomes one of the frozen class.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def quick(frozen: Callable[P, T]) -> Callable[P, T]:
    """A function that builds the slotted dataclass ``frozen`` from all its fields, given by keyword.

    ``__post_init__`` and defaults do not apply.
    """
    assert isinstance(frozen, type)
    body = {
        "__slots__": (),  # adds nothing: so the layouts are the same and __class__ may be assigned
        "__setattr__": object.__setattr__,
        "__delattr__": object.__delattr__,  # both, or CPython does not use the plain C setter
    }
    names = [field.name for field in fields(frozen)]
    lines = [f"def build(*, {', '.join(names)}):", "record = new(twin)"]
    lines += [f"record.{name} = {name}" for name in names]
    lines += ["record.__class__ = frozen", "return record"]
    namespace: dict[str, Any] = {
        "new": object.__new__,
        "twin": type(f"Quick{frozen.__name__}", (frozen,), body),
        "frozen": frozen,
    }
    exec("\n    ".join(lines), namespace)
    build: Callable[P, T] = namespace["build"]
    return build
