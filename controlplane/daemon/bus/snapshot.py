"""The daemon's state on disk: a file with the stream position it was taken at.

An ordered consumer is never durable, so the snapshot is the position: a new daemon loads it and reads the stream
from the next message on. It is written often, atomically and synced (``files``): a machine without power loses the
one that was under way, and the one before with the longer rest of the stream does as well.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, cast, get_type_hints

import msgspec

from controlplane.core.experiment import SwitchbackState
from controlplane.core.ledger import RECORDS, Ledger
from controlplane.core.ledger.tools import tool_key
from controlplane.core.model.text import is_printable, printable, sanitize
from controlplane.core.policies.presets import Preset
from controlplane.core.scheduling.rules_and_state import ControllerState
from controlplane.daemon.process.tasks import described
from controlplane.wire.files import read_bytes

VERSION = 7
_MOST_BYTES = 1 << 30
_CLASSES = "classes"  # of prompts, by model and agent, with a line feed between them
_ESCAPE = re.compile(rb"\\(.)")
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
    [
        ("ledger", _Records),
        *((name, _hints[name]) for name in _AS_IT_IS if name != "experiment"),
        (
            "experiment",
            SwitchbackState,
            msgspec.field(default_factory=SwitchbackState),
        ),  # earlier versions had none
    ],
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
    now_ns: int,
    stream_sequence: int = 0,
    stream_created: str = "",
    time_scale: float = 1.0,
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
        if _has_other_names(data):
            data = msgspec.json.encode(_sanitized(msgspec.json.decode(data)))
        snapshot = cast(Snapshot, msgspec.json.decode(data, type=_Whole))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotError(f"not a snapshot: {error}") from error
    if snapshot.version != VERSION:
        raise SnapshotError(f"it has version {snapshot.version}; this daemon reads version {VERSION}")
    return snapshot


def _has_other_names(data: bytes) -> bool:
    """Whether an earlier version may have taken in a name that is not printable. Fast where it has not."""
    if not data.isascii() or b"\x7f" in data:
        return True
    for found in _ESCAPE.finditer(data):
        if found[1] not in b'n"\\/':
            return True
        if found[1] == b"n":  # in the key of a call it stands between two names
            begin = data.rfind(b'"', 0, found.start())
            if data[begin - 1 : begin] in (b":", b"\\"):
                return True
    return False


def _sanitized(state: Any) -> Any:
    """The same with names and reasons as events have them now."""
    calls = dict(_keys_of_calls(state))

    def clean(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key if name == _CLASSES else clean(key): clean(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [clean(each, name) for each in value]
        if not isinstance(value, str) or is_printable(value):
            return value
        return printable(value) if name == "reason" else calls.get(value) or sanitize(value)

    return clean(state)


def _keys_of_calls(value: Any) -> Iterator[tuple[str, str]]:
    """Each call's key, which has two names in it, and what it is now."""
    for key, each in value.items() if isinstance(value, dict) else ():
        if isinstance(each, dict):
            names = [str(each.get(name)) for name in ("program_id", "call_id")]
            if key == "\n".join(names):
                yield key, tool_key(*(name if is_printable(name) else sanitize(name) for name in names))
        yield from _keys_of_calls(each)


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
        ledger=Ledger(snapshot=msgspec.structs.asdict(held["ledger"])),
        **{name: held[name] for name in _AS_IT_IS},
        **policies,
    )


def load(path: Path, preset: Preset) -> tuple[Snapshot, ControllerState]:
    """What the file holds. One that cannot be used is moved aside, to ``snapshot.unread``.

    Raises ``FileNotFoundError``, and ``SnapshotError`` for whatever else is wrong.
    """
    try:
        snapshot = read(read_bytes(path, _MOST_BYTES))
        return snapshot, restore(snapshot, preset)
    except FileNotFoundError:
        raise
    except Exception as error:  # its records may contradict each other in any way
        with suppress(OSError):
            path.replace(path.with_suffix(".unread"))
        raise error if isinstance(error, SnapshotError) else SnapshotError(described(error)) from error
