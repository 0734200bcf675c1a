"""The daemon's state on disk: a file with the stream position it was taken at.

An ordered consumer is never durable, so the snapshot is the position: a new daemon loads it and reads the stream
from the next message on. It is written often and atomically; a crash of the machine may lose the last one, and the
one before with the longer rest of the stream does as well.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, cast, get_type_hints

import msgspec

from controlplane.core.control import ControllerState
from controlplane.core.ledger import RECORDS, Ledger
from controlplane.core.presets import Preset
from controlplane.core.steps import Steps, run

VERSION = 7
_AT_ONCE = 1000  # of the programs, turns, ...
_POLICIES = ("admission", "retention", "placement")
_AS_IT_IS = [each.name for each in fields(ControllerState) if each.name not in ("ledger", *_POLICIES)]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the file holds beside the controller's state.

    Policy states stay raw until their preset says what they are.
    """

    version: int = VERSION
    preset: str
    stream_sequence: int  # of the last message that the state contains
    stream_created: str  # which stream: a new one counts from 1 again
    now_ns: int
    time_scale: float
    policies: dict[str, msgspec.Raw]


# The state's fields are spelt where they are declared, and nowhere else.
_Records = msgspec.defstruct(
    "_Records", [(name, kind, msgspec.field(default_factory=make)) for name, (kind, make) in RECORDS.items()]
)
_hints = get_type_hints(ControllerState)
_Whole = msgspec.defstruct(
    "_Whole",
    [("ledger", _Records), *((name, _hints[name]) for name in _AS_IT_IS)],
    bases=(Snapshot,),
    frozen=True,
    kw_only=True,
)


class SnapshotError(Exception):
    """The file cannot be used; the stream is read from its beginning instead."""


def pieces(
    state: ControllerState,
    *,
    preset: str,
    stream_sequence: int,
    stream_created: str,
    now_ns: int,
    time_scale: float,
) -> Iterator[bytes]:
    """Encode ``state`` as it is, piece by piece: whole, that of a hundred thousand programs is 135 MB.

    Nothing may change the state before the last one is taken.
    """
    head = Snapshot(
        preset=preset,
        stream_sequence=stream_sequence,
        stream_created=stream_created,
        now_ns=now_ns,
        time_scale=time_scale,
        policies={name: msgspec.Raw(msgspec.json.encode(getattr(state, name))) for name in _POLICIES},
    )
    yield msgspec.json.encode(head).removesuffix(b"}") + b',"ledger":'
    yield from _object(state.ledger.records())
    for name in _AS_IT_IS:
        yield b"," + msgspec.json.encode(name) + b":"
        yield from _value(getattr(state, name))
    yield b"}"


def _object(values: Mapping[str, Any]) -> Iterator[bytes]:
    begin = b"{"
    for name, value in values.items():
        yield begin + msgspec.json.encode(name) + b":"
        yield from _value(value)
        begin = b","
    yield b"}"


def _value(value: Any) -> Iterator[bytes]:
    if not isinstance(value, dict) or len(value) <= _AT_ONCE:
        yield msgspec.json.encode(value)
        return
    left, begin = iter(value.items()), b"{"
    while some := dict(itertools.islice(left, _AT_ONCE)):
        yield begin + msgspec.json.encode(some)[1:-1]
        begin = b","
    yield b"}"


def read(data: bytes) -> Snapshot:
    """Decode. Raises ``SnapshotError`` for anything that is not a snapshot of this version."""
    try:
        snapshot = cast(Snapshot, msgspec.json.decode(data, type=_Whole))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotError(f"not a snapshot: {error}") from error
    if snapshot.version != VERSION:
        raise SnapshotError(f"it has version {snapshot.version}; this daemon reads version {VERSION}")
    return snapshot


def restore(snapshot: Snapshot, preset: Preset) -> ControllerState:
    """The controller's state; policies of another preset start afresh, programs stay."""
    policies: dict[str, Any] = {name: getattr(preset, name).initial() for name in _POLICIES}
    if snapshot.preset == preset.name:
        for name, initial in policies.items():
            try:
                policies[name] = msgspec.json.decode(snapshot.policies[name], type=type(initial))
            except (KeyError, msgspec.DecodeError, UnicodeDecodeError):
                continue  # the preset now names another policy here
    held = msgspec.structs.asdict(snapshot)
    return ControllerState(
        ledger=Ledger(kept_before=msgspec.structs.asdict(held["ledger"])),
        **{name: held[name] for name in _AS_IT_IS},
        **policies,
    )


def write(path: Path, pieces: Iterable[bytes]) -> None:
    """Replace the file at once, so that a reader sees the old one or the new one whole. Raises ``OSError``."""
    run(writing(path, pieces))


def writing(path: Path, pieces: Iterable[bytes]) -> Steps[None]:
    """``write``, with pauses in which nothing may change what the pieces are made of."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    try:
        with draft.open("wb") as file:
            for piece in pieces:
                file.write(piece)
                yield
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()  # half of one would keep a full disk full
        raise
