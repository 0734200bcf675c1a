"""Functions that copy an event into its message and back, written out for each type from the two declarations.

A field is copied because the dataclass and the message both have it: one that is added to both travels without a
line here. What may stand in it follows from its type and from the rules in ``validation``.

The functions are generated as source: a loop over ``getattr`` and ``setattr`` takes several times as long. A frozen
dataclass sets each field through ``object.__setattr__``, which costs 0.1 us a field: the twin made here has the
same layout and plain attribute stores; the finished record then becomes one of the frozen class. ``__post_init__``
does not apply.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from controlplane.core.model.events import EVENT_TYPES, Event
from controlplane.core.model.text import printable, sanitize
from controlplane.core.model.types import MOST_NAME
from controlplane.wire._generated import events_pb2 as pb
from controlplane.wire.names import snake_case
from controlplane.wire.validation import COUNT_BITS, MOST_REASON, REASON, find_fault, is_required, least, most

Read = Callable[[Any, str, int, int], Event | None]
"""Of (message, publisher, sequence, at_ns): the event; None where a field is at fault (see ``find_fault``)."""
Write = Callable[[Any, Any], None]
"""Copies an event into a message of its kind."""

_OF_THE_BATCH = tuple(field.name for field in fields(Event))
_NEGATED = {"ok": "failed"}  # on the wire what is usual is what takes no bytes
_ABSENT = -1  # of a count that the message may lack


def kinds() -> Iterator[tuple[type[Event], str, Descriptor]]:
    """Each type of event, its name in a batch, and its message."""
    for event_type in EVENT_TYPES:
        kind = snake_case(event_type)
        message = pb.Event.DESCRIPTOR.fields_by_name[kind].message_type
        assert message is not None
        yield event_type, kind, message


def reader(event_type: type[Event], message: Descriptor) -> Read:
    """A decoder that checks what it reads."""
    names: list[str] = []  # texts that must not be empty
    texts: list[str] = []  # others, but for reasons, which are cut off
    counts: list[str] = []
    measures: list[str] = []  # their bounds
    lines: list[str] = []
    space: dict[str, Any] = {}
    thorough = False
    for name, kind, field in _shared(event_type, message):
        source = f"m.{field.name}"
        if kind is str and name == REASON:
            lines.append(f"{name} = printable({source}[:{MOST_REASON}])")
            continue
        if get_origin(kind) is not None:
            (item,) = get_args(kind)
            space[f"make_{name}"] = _maker(item, field.message_type) if is_dataclass(item) else sanitize
            lines.append(f"{name} = tuple(map(make_{name}, {source}))")
            thorough = True
            continue
        lines.append(f"{name} = {'not ' * (name in _NEGATED)}{source}")
        if kind is str:
            (names if is_required(field) else texts).append(name)
        elif kind is float:
            measures.append(f"0.0 <= {name} {'<' if most(field) == math.inf else '<='} {most(field)}")
        elif kind is int:
            counts.append(f"{name} - {low}" if (low := least(field)) else name)
            if field.has_presence:
                lines.append(f"{name} = {name} if {name} or m.HasField('{name}') else {_ABSENT}")
                counts[-1] = source
    # An "or" of integers shifted right is 0 if and only if each of them is within bounds, negative ones included.
    checks = [f"not {name}" for name in names]
    if counts:
        checks.append(f"({' | '.join(counts)}) >> {COUNT_BITS}")
    checks += [f"not {measure}" for measure in measures]
    checks += ["find_fault(m)"] * thorough
    body = [*lines, *_sanitizing([*names, *texts])]
    body += [f"if {' or '.join(checks)}:", "    return None"] if checks else []
    named = [*_OF_THE_BATCH, *(name for name, _, _ in _shared(event_type, message))]
    body += ["record = new(Twin)", *(f"record.{name} = {name}" for name in named)]
    body += ["record.__class__ = Record", "return record"]  # classes begin as no field's name does
    space |= {"new": object.__new__, "Twin": _twin(event_type), "Record": event_type}
    space |= {"inf": math.inf, "find_fault": find_fault, "sanitize": sanitize, "printable": printable}
    made: Read = _function(f"m, {', '.join(_OF_THE_BATCH)}", body, space)
    return made


def writer(event_type: type[Event], message: Descriptor) -> Write:
    """An encoder. It raises what protobuf raises for a value of the wrong type or out of 64 bits."""
    lines = ["m.SetInParent()"]  # a message of defaults only must still say its kind
    for name, kind, field in _shared(event_type, message):
        target = f"m.{field.name}"
        if get_origin(kind) is None:
            value = f"{'not ' * (name in _NEGATED)}event.{name}"
            lines += [f"if event.{name} >= 0:"] * field.has_presence
            lines.append(f"{'    ' * field.has_presence}{target} = {value}")
            continue
        (item,) = get_args(kind)
        if not is_dataclass(item):
            lines.append(f"{target}.extend(event.{name})")
            continue
        copied = ", ".join(f"{part.name}=item.{part.name}" for part in fields(item))
        lines += [f"for item in event.{name}:", f"    {target}.add({copied})"]
    made: Write = _function("event, m", lines, {})
    return made


def _shared(event_type: type[Event], message: Descriptor) -> list[tuple[str, Any, FieldDescriptor]]:
    """Each of the event's own fields: its name, its type, and the message's field."""
    kinds = get_type_hints(event_type)
    own = [field.name for field in fields(event_type) if field.name not in _OF_THE_BATCH]
    return [(name, kinds[name], message.fields_by_name[_NEGATED.get(name, name)]) for name in own]


def _sanitizing(names: Sequence[str]) -> list[str]:
    """Lines that make the texts good names; those that are ASCII and short, as nearly all, are only looked at."""
    is_clean = [f"{name}.isascii() and {name}.isprintable() and len({name}) <= {MOST_NAME}" for name in names]
    cleaned = [f"    {name} = sanitize({name})" for name in names]
    return [f"if not ({' and '.join(is_clean)}):", *cleaned] if names else []


def _maker(record_type: Any, message: Descriptor | None) -> Any:
    """Of a message within an event's: its record, unchecked."""
    assert message is not None
    names = [field.name for field in fields(record_type) if field.name in message.fields_by_name]
    hints = get_type_hints(record_type)
    values = {name: f"sanitize(m.{name})" if hints[name] is str else f"m.{name}" for name in names}
    body = [f"return Record({', '.join(f'{name}={value}' for name, value in values.items())})"]
    return _function("m", body, {"Record": record_type, "sanitize": sanitize})


def _twin(frozen: type) -> type:
    body = {
        "__slots__": (),  # adds nothing: so the layouts are the same and __class__ may be assigned
        "__setattr__": object.__setattr__,
        "__delattr__": object.__delattr__,  # both, or CPython does not use the plain C setter
    }
    return type(f"Quick{frozen.__name__}", (frozen,), body)


def _function(arguments: str, body: Sequence[str], space: dict[str, Any]) -> Any:
    exec("\n    ".join([f"def made({arguments}):", *body]), space)
    return space["made"]
