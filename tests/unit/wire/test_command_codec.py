"""Commands and heartbeats survive the wire."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import commands
from support import strangers

from controlplane.core.model import commands as core
from controlplane.core.model.errors import LocalEventError, RemoteEventError
from controlplane.core.model.text import printable, sanitize
from controlplane.wire._generated import commands_pb2 as pb
from controlplane.wire._generated import control_pb2
from controlplane.wire.codec import (
    Heartbeat,
    decode_commands,
    decode_heartbeat,
    encode_commands,
    encode_heartbeat,
    last_command_id,
)
from controlplane.wire.command_codec import MOST_COMMAND_ID


@given(st.lists(commands(), max_size=8))
def test_every_command_survives_the_wire(items: list[core.Command]) -> None:
    assert decode_commands(encode_commands(items)) == items


@given(strangers.names)
def test_a_command_names_a_program_as_events_do(name: str) -> None:
    """An earlier version's daemon may have sent it, in a stream that is read again."""
    data = pb.Command(
        command_id=1, reason=printable(name), pause=pb.Pause(program_id=name.encode(errors="replace"))
    )
    (paused,) = decode_commands(pb.CommandBatch(commands=[data]).SerializeToString())
    assert isinstance(paused, core.Pause)
    assert paused.program_id == sanitize(name.encode(errors="replace").decode())


@given(st.binary(max_size=100))
def test_any_bytes_are_commands_or_a_remote_error(data: bytes) -> None:
    for decode in (decode_commands, decode_heartbeat):
        try:
            decode(data)
        except RemoteEventError as error:
            assert str(error)


def test_malformed_bytes_say_so() -> None:
    with pytest.raises(RemoteEventError, match="malformed command batch of 2 bytes"):
        decode_commands(b"\xff\xff")


def test_a_kind_from_a_newer_version_is_skipped_and_so_is_a_command_about_nobody() -> None:
    newer = pb.Command.FromString(b"\x08\x05\xa2\x06\x02\x08\x01")
    nobody = pb.Command(command_id=6, pause=pb.Pause())
    good = pb.Command(command_id=7, pause=pb.Pause(program_id="p"))
    data = pb.CommandBatch(commands=[newer, nobody, good]).SerializeToString()
    assert decode_commands(data) == [core.Pause(command_id=7, program_id="p")]


@pytest.mark.parametrize("command", ["no command", core.Command(), core.Retain(program_id="p", ttl_ns=2**63)])
def test_what_cannot_be_encoded_is_our_own_error(command: Any) -> None:
    with pytest.raises(LocalEventError):
        encode_commands([command])


@given(
    st.builds(
        Heartbeat,
        node=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
        boot_id=st.text(st.characters(exclude_categories=["Cs"])),
        lease_ttl_ns=st.integers(0, 2**62),
        limit=st.integers(0, 2**62),
        window=st.floats(min_value=0, allow_nan=False),
        command_id=st.integers(0, MOST_COMMAND_ID),
        asked_ago_ns=st.integers(0, 2**62),
        lost_ns=st.integers(0, 2**62),
        fence=st.integers(0, 2**62),
    )
)
def test_a_heartbeat_survives_the_wire(heartbeat: Heartbeat) -> None:
    assert decode_heartbeat(encode_heartbeat(heartbeat)) == heartbeat


@pytest.mark.parametrize(
    "message",
    [
        control_pb2.Heartbeat(),
        control_pb2.Heartbeat(node="n", lease_ttl_ns=-1),
        control_pb2.Heartbeat(node="n", limit=-1),
        control_pb2.Heartbeat(node="n", command_id=-1),
        control_pb2.Heartbeat(node="n", command_id=MOST_COMMAND_ID + 1),
        control_pb2.Heartbeat(node="n", window=float("nan")),
        control_pb2.Heartbeat(node="n", asked_ago_ns=-1),
        control_pb2.Heartbeat(node="n", lost_ns=-1),
    ],
)
def test_a_heartbeat_that_makes_no_sense_is_refused(message: control_pb2.Heartbeat) -> None:
    with pytest.raises(RemoteEventError, match="makes no sense"):
        decode_heartbeat(message.SerializeToString())


@pytest.mark.parametrize("number", [MOST_COMMAND_ID + 1, (1 << 63) - 1, -1])
def test_a_number_that_nobody_counts_to_is_not_taken_over(number: int) -> None:
    """A daemon goes on from the number of the last command that it finds."""
    commands = [
        core.SetWindow(command_id=number, limit=1, window=1.0),
        core.SetWindow(command_id=MOST_COMMAND_ID, limit=2, window=2.0),
    ]
    assert decode_commands(encode_commands(commands)) == commands[1:]
    assert last_command_id(encode_commands(commands)) == MOST_COMMAND_ID


def test_the_last_number_of_bytes_that_are_no_batch() -> None:
    assert last_command_id(b"\xff\xff") == 0
    assert last_command_id(b"") == 0
