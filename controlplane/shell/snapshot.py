"""The daemon's state on disk: a file with the stream position it was taken at.

An ordered consumer is never durable, so the snapshot is the position: a new daemon loads it and reads the stream
from the next message on. It is written often and atomically; a crash of the machine may lose the last one, and the
one before with the longer rest of the stream does as well.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from controlplane.core.control import ControllerState
from controlplane.core.overload import Overload
from controlplane.core.policies import Window
from controlplane.core.presets import Preset
from controlplane.core.records import LedgerState

VERSION = 7


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the file holds. Policy states stay raw until their preset says what they are."""

    version: int = VERSION
    preset: str
    stream_sequence: int  # of the last message that the state contains
    stream_created: str  # which stream: a new one counts from 1 again
    now_ns: int
    time_scale: float
    ledger: LedgerState
    overload: Overload
    window: Window
    announced: tuple[int, float]
    forecast: tuple[int, ...]
    forecast_key: tuple[int, int]
    interval_ends_ns: int
    tools_beyond: int
    policies: dict[str, msgspec.Raw]


class SnapshotError(Exception):
    """The file cannot be used; the stream is read from its beginning instead."""


def take(
    state: ControllerState,
    *,
    preset: str,
    stream_sequence: int,
    stream_created: str,
    now_ns: int,
    time_scale: float,
) -> bytes:
    """Encode ``state`` as it is now."""
    policies = {"admission": state.admission, "retention": state.retention}
    snapshot = Snapshot(
        preset=preset,
        stream_sequence=stream_sequence,
        stream_created=stream_created,
        now_ns=now_ns,
        time_scale=time_scale,
        ledger=state.ledger,
        overload=state.overload,
        window=state.window,
        announced=state.announced,
        forecast=state.forecast,
        forecast_key=state.forecast_key,
        interval_ends_ns=state.interval_ends_ns,
        tools_beyond=state.tools_beyond,
        policies={name: msgspec.Raw(msgspec.json.encode(policy)) for name, policy in policies.items()},
    )
    return msgspec.json.encode(snapshot)


def read(data: bytes) -> Snapshot:
    """Decode. Raises ``SnapshotError`` for anything that is not a snapshot of this version."""
    try:
        snapshot = msgspec.json.decode(data, type=Snapshot)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotError(f"not a snapshot: {error}") from error
    if snapshot.version != VERSION:
        raise SnapshotError(f"it has version {snapshot.version}; this daemon reads version {VERSION}")
    return snapshot


def restore(snapshot: Snapshot, preset: Preset) -> ControllerState:
    """The controller's state; policies of another preset start afresh, programs stay."""
    kinds: dict[str, Any] = {"admission": preset.admission, "retention": preset.retention}
    policies: dict[str, Any] = {name: policy.initial() for name, policy in kinds.items()}
    if snapshot.preset == preset.name:
        for name, initial in policies.items():
            try:
                policies[name] = msgspec.json.decode(snapshot.policies[name], type=type(initial))
            except (KeyError, msgspec.DecodeError, UnicodeDecodeError):
                continue  # the preset now names another policy here
    return ControllerState(
        ledger=snapshot.ledger,
        overload=snapshot.overload,
        window=snapshot.window,
        announced=snapshot.announced,
        forecast=snapshot.forecast,
        forecast_key=snapshot.forecast_key,
        interval_ends_ns=snapshot.interval_ends_ns,
        tools_beyond=snapshot.tools_beyond,
        **policies,
    )


def write(path: Path, data: bytes) -> None:
    """Replace the file at once, so that a reader sees the old one or the new one whole. Raises ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()  # half of one would keep a full disk full
        raise
