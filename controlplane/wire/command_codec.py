"""Commands of core as protobuf messages, and back."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from google.protobuf.message import DecodeError

from controlplane.core.model.commands import COMMAND_TYPES, Command
from controlplane.core.model.errors import LocalEventError, RemoteEventError
from controlplane.core.model.text import printable, sanitize
from controlplane.wire._generated import commands_pb2 as pb
from controlplane.wire.names import snake_case

MOST_COMMAND_ID = 1 << 62
"""Commands are counted from 1: a number beyond this is forged, and counting on from it would pass 64 bits."""

_CARRIED_BY_EVERY = frozenset(field.name for field in fields(Command))


def _own_fields(command_type: type[Command]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(command_type) if field.name not in _CARRIED_BY_EVERY)


_KINDS = {command_type: (snake_case(command_type), _own_fields(command_type)) for command_type in COMMAND_TYPES}
_TYPES = {kind: (command_type, names) for command_type, (kind, names) in _KINDS.items()}


def encode_commands(commands: Sequence[Command]) -> bytes:
    """One batch, to be obeyed in this order.

    :raises LocalEventError: a command has a field of the wrong type or out of 64 bits, or is of no known kind.
    """
    batch = pb.CommandBatch()
    for command in commands:
        fill_command(batch.commands.add(), command)
    return batch.SerializeToString()


def fill_command(message: pb.Command, command: Command) -> None:
    """Write ``command`` into ``message``. Raises as ``encode_commands``."""
    known = _KINDS.get(type(command))
    if known is None:
        raise LocalEventError(f"not a command: {type(command).__name__}")
    kind, names = known
    try:
        message.command_id, message.reason = command.command_id, command.reason
        body = getattr(message, kind)
        body.SetInParent()
        for name in names:
            setattr(body, name, getattr(command, name))
    except (TypeError, ValueError, AttributeError) as error:
        raise LocalEventError(f"cannot encode {command!r:.200}: {error}") from error


def decode_commands(data: bytes) -> list[Command]:
    """Read one batch. Kinds that this version does not know, and commands about nobody, are skipped.

    :raises RemoteEventError: the bytes are no batch.
    """
    try:
        batch = pb.CommandBatch.FromString(data)
    except DecodeError as error:
        raise RemoteEventError(f"malformed command batch of {len(data)} bytes: {error}") from error
    return [command for message in batch.commands if (command := read_command(message)) is not None]


def last_command_id(data: bytes) -> int:
    """The highest number in a batch that somebody may have counted to; 0 for one that cannot be read."""
    try:
        commands = pb.CommandBatch.FromString(data).commands
    except DecodeError:
        return 0
    return max((each.command_id for each in commands if each.command_id <= MOST_COMMAND_ID), default=0)


def read_command(message: pb.Command) -> Command | None:
    """None for a kind that this version does not know, a number that nobody counts to, a command about nobody."""
    kind = message.WhichOneof("kind")
    if kind is None or not 0 <= message.command_id <= MOST_COMMAND_ID:
        return None
    command_type, names = _TYPES[kind]
    body = getattr(message, kind)
    values: dict[str, Any] = {name: _fit(getattr(body, name)) for name in names}
    if values.get("program_id") == "":
        return None
    return command_type(command_id=message.command_id, reason=printable(message.reason), **values)


def _fit(value: Any) -> Any:
    """A name as events have it."""
    return sanitize(value) if isinstance(value, str) else value
