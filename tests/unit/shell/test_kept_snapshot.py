"""A snapshot that a daemon of version 7 left on disk is read, however the ledger is cut meanwhile."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.core_driver import Driver, fixed

from controlplane.core.controller import Controller
from controlplane.core.presets import PRESETS
from controlplane.shell import snapshot

PRESET = PRESETS["penstock"]
FILE = Path(__file__).with_name("snapshot_of_version_7.json").read_bytes()


def test_nothing_that_was_kept_is_lost() -> None:
    left = snapshot.read(FILE)
    state = snapshot.restore(left, PRESET)
    again = json.loads(
        b"".join(
            snapshot.pieces(
                state,
                preset=left.preset,
                stream_sequence=left.stream_sequence,
                stream_created=left.stream_created,
                now_ns=left.now_ns,
                time_scale=left.time_scale,
            )
        )
    )
    before = json.loads(FILE)
    programs, programs_again = before["ledger"].pop("programs"), again["ledger"].pop("programs")
    shared = next(iter(programs.values())).keys() & next(iter(programs_again.values())).keys()
    assert list(lost(before, again)) == ["$.ledger.estimates.tokens_per_byte"]  # one rate for all is used no more
    for name, program in programs.items():
        assert {field: program[field] for field in shared} == {
            field: programs_again[name][field] for field in shared
        }


def lost(before: Any, again: Any, path: str = "$") -> Iterator[str]:
    """What is no longer there, or has another value. Records may have got new fields since."""
    if isinstance(before, dict) and isinstance(again, dict):
        for key, value in before.items():
            yield from lost(value, again[key], f"{path}.{key}") if key in again else (f"{path}.{key}",)
    elif before != again:
        yield path


def test_a_controller_goes_on_from_it() -> None:
    left = snapshot.read(FILE)
    controller = Controller(PRESET, state=snapshot.restore(left, PRESET))
    assert controller.ledger.programs.active
    assert all(command.reason for command in controller.tick(left.now_ns))


def test_many_programs_are_written_piece_by_piece_and_read_as_one() -> None:
    driver = Driver(fixed(0))
    for number in range(5000):
        driver.submit(f"p{number}")
    state = driver.controller.state
    written = list(
        snapshot.pieces(state, preset="t", stream_sequence=1, stream_created="", now_ns=1, time_scale=1.0)
    )
    whole = b"".join(written)
    assert max(map(len, written)) < len(whole) / 4
    again = snapshot.restore(snapshot.read(whole), PRESET)
    assert again.ledger.records() == state.ledger.records()
