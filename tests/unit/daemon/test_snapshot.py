"""Snapshots: what was kept is read, also of an earlier version, and what is none is said to be none."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import strangers
from support.core_driver import Driver, fixed

from controlplane.core.model import events as ev
from controlplane.core.model.text import sanitize
from controlplane.core.policies.presets import PRESETS
from controlplane.core.scheduling.controller import Controller
from controlplane.core.scheduling.rules_and_state import ControllerState
from controlplane.daemon.bus import snapshot
from controlplane.wire.codec import decode_events, encode_events

PRESET = PRESETS["penstock"]
FILE = Path(__file__).with_name("snapshot_of_version_7.json").read_bytes()
TAKEN = {case: name for case, name in strangers.NAMES.items() if case != "half a pair" and len(name) <= 256}


def written(state: ControllerState, **head: Any) -> list[bytes]:
    known = {"preset": "x", "stream_sequence": 1, "stream_created": "x", "now_ns": 10**18, "time_scale": 1.0}
    return list(snapshot.pieces(state, **{**known, **head}))


def lost(before: Any, again: Any, path: str = "$") -> Iterator[str]:
    """What is no longer there, or has another value. Records may have got new fields since."""
    if isinstance(before, dict) and isinstance(again, dict):
        for key, value in before.items():
            yield from lost(value, again[key], f"{path}.{key}") if key in again else (f"{path}.{key}",)
    elif before != again:
        yield path


def test_what_a_daemon_of_version_7_left_is_read_and_a_controller_goes_on_from_it() -> None:
    left = snapshot.read(FILE)
    state = snapshot.restore(left, PRESET)
    names = ("preset", "stream_sequence", "stream_created", "now_ns", "time_scale")
    again = json.loads(b"".join(written(state, **{name: getattr(left, name) for name in names})))
    before = json.loads(FILE)
    programs, programs_again = before["ledger"].pop("programs"), again["ledger"].pop("programs")
    shared = next(iter(programs.values())).keys() & next(iter(programs_again.values())).keys()
    # One rate for all is used no more; how long calls take on a host that is not crowded is learned anew.
    unused = [
        f"$.ledger.estimates.{each}" for each in ("tools..uncrowded", "tools.bash.uncrowded", "tokens_per_byte")
    ]
    assert list(lost(before, again)) == unused
    for name, program in programs.items():
        assert {field: program[field] for field in shared} == {
            field: programs_again[name][field] for field in shared
        }
    controller = Controller(PRESET, state=state)
    assert controller.ledger.programs.active
    assert all(command.reason for command in controller.tick(left.now_ns))


def test_many_programs_are_written_piece_by_piece_and_read_as_one() -> None:
    driver = Driver(fixed(0))
    for number in range(5000):
        driver.submit(f"p{number}")
    state = driver.controller.state
    whole = b"".join(pieces := written(state))
    assert max(map(len, pieces)) < len(whole) / 4
    again = snapshot.restore(snapshot.read(whole), PRESET)
    assert again.ledger.records() == state.ledger.records()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"{", b""),
        (b'"}', b""),
        (b'"x"', b'"\xf8"'),  # no UTF-8
        (b'"programs":{}', b'"programs":' + b"[" * 100_000),
        (b'"version":7', b'"version":6'),
    ],
    ids=["torn", "cut", "no text", "too deep", "older"],
)
def test_what_is_no_snapshot_is_said_to_be_none(old: bytes, new: bytes) -> None:
    taken = b"".join(written(Driver(PRESET).controller.state))
    assert snapshot.restore(snapshot.read(taken), PRESET).admission == PRESET.admission.initial()
    for data in (b"", taken[:-2] if old == b'"}' else taken.replace(old, new)):
        with pytest.raises(snapshot.SnapshotError):
            snapshot.read(data)


@pytest.mark.parametrize("name", TAKEN.values(), ids=TAKEN)
def test_a_call_of_any_name_that_was_taken_in_goes_on_after_a_restart(name: str) -> None:
    d = Driver(PRESET)
    d.ask(name)
    d.send(d.tools(ev.ToolEnqueued, program_id=name, call_id=name, tool=name, wants_slot=True))
    state = snapshot.restore(snapshot.read(b"".join(written(d.controller.state))), PRESET)
    d.controller = Controller(PRESET, None, state)
    assert d.ledger.programs.by_name.keys() == {sanitize(name)}
    assert [*d.ledger.programs.queue] == [sanitize(name)]
    ended = ev.ToolEnded(program_id=name, call_id=name, tool=name, duration_ns=1)
    d.send(*decode_events(encode_events(d.tools.name, 2, [(1, ended)])).events)
    assert not d.ledger.tools.calls
