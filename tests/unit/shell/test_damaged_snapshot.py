"""A snapshot that is no snapshot is said to be none; whatever it holds."""

import pytest

from controlplane.core.control import ControllerState
from controlplane.core.presets import PRESETS
from controlplane.shell import snapshot

PRESET = PRESETS["penstock"]


def taken() -> bytes:
    state = ControllerState(
        admission=PRESET.admission.initial(),
        retention=PRESET.retention.initial(),
    )
    return b"".join(
        snapshot.pieces(
            state, preset="penstock", stream_sequence=1, stream_created="x", now_ns=10**18, time_scale=1.0
        )
    )


def test_what_was_taken_is_read() -> None:
    assert snapshot.restore(snapshot.read(taken()), PRESET).admission == PRESET.admission.initial()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        taken()[:-2],
        taken().replace(b'"x"', b'"\xf8"'),  # no UTF-8
        taken().replace(b'"programs":{}', b'"programs":' + b"[" * 100_000),
        taken().replace(b'"version":7', b'"version":6'),
    ],
    ids=["empty", "torn", "cut", "no text", "too deep", "older"],
)
def test_what_is_no_snapshot_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(snapshot.SnapshotError):
        snapshot.read(data)
