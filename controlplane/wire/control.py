"""The control API on the wire: its methods as the .proto file lists them, and records as messages and back.

A reply is made from any record that has the message's fields, so the .proto file says what is told; a request and a
client's reply are ``Fields``, plain objects with one attribute a field.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from controlplane.core.model.commands import Command
from controlplane.core.model.errors import RemoteEventError
from controlplane.wire._generated import control_pb2
from controlplane.wire.command_codec import fill_command, read_command

_SERVICE = control_pb2.DESCRIPTOR.services_by_name["Control"]
SERVICE: str = _SERVICE.full_name

Fields = SimpleNamespace


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method: how its messages become bytes, and whether replies come one after another."""

    name: str
    streams: bool
    encode_request: Callable[[Any], bytes]
    decode_request: Callable[[bytes], Fields]
    encode_reply: Callable[[Any], bytes]
    decode_reply: Callable[[bytes], Fields]

    @property
    def path(self) -> str:
        """As gRPC addresses it."""
        return f"/{SERVICE}/{self.name}"


def _encoder(kind: type[Message]) -> Callable[[Any], bytes]:
    def encode(record: Any) -> bytes:
        message = kind()
        _fill(message, record)
        return message.SerializeToString()

    return encode


def _decoder(kind: type[Message]) -> Callable[[bytes], Fields]:
    def decode(data: bytes) -> Fields:
        try:
            return _fields(kind.FromString(data))
        except DecodeError as error:
            raise RemoteEventError(f"malformed {kind.DESCRIPTOR.name}: {error}") from error

    return decode


@dataclass(frozen=True, slots=True)
class _Field:
    """What is asked of a field for each message: looked up once, as a list may have a thousand."""

    name: str
    is_repeated: bool
    has_fields: bool  # a message
    is_command: bool


@lru_cache(maxsize=256)  # kinds of messages, of which there are fewer
def _fields_of(kind: Descriptor) -> tuple[_Field, ...]:
    return tuple(
        _Field(
            field.name,
            field.is_repeated,
            field.message_type is not None,
            field.message_type is not None and field.message_type.name == "Command",
        )
        for field in kind.fields
    )


def _fill(message: Any, record: Any) -> None:
    """Every field of ``message`` that ``record`` has; a mapping's keys and a set's names count as lists."""
    for field in _fields_of(message.DESCRIPTOR):
        value = getattr(record, field.name, None)
        if value is None:
            continue
        if field.is_repeated:
            target = getattr(message, field.name)
            for each in value:
                if field.has_fields:
                    _fill(target.add(), each)
                else:
                    target.append(each)
        elif isinstance(value, Command):
            fill_command(getattr(message, field.name), value)
        elif field.has_fields:
            target = getattr(message, field.name)
            target.SetInParent()
            _fill(target, value)
        elif value:
            setattr(message, field.name, value.value if isinstance(value, Enum) else value)


def _fields(message: Any) -> Fields:
    found: dict[str, Any] = {}
    for field in _fields_of(message.DESCRIPTOR):
        value = getattr(message, field.name)
        if field.is_repeated:
            found[field.name] = [_fields(each) for each in value] if field.has_fields else list(value)
        elif field.is_command:
            found[field.name] = read_command(value)
        else:
            found[field.name] = _fields(value) if field.has_fields else value
    return Fields(**found)


def _method(descriptor: Any) -> Method:
    request, reply = GetMessageClass(descriptor.input_type), GetMessageClass(descriptor.output_type)
    return Method(
        name=descriptor.name,
        streams=descriptor.server_streaming,
        encode_request=_encoder(request),
        decode_request=_decoder(request),
        encode_reply=_encoder(reply),
        decode_reply=_decoder(reply),
    )


METHODS: dict[str, Method] = {each.name: _method(each) for each in _SERVICE.methods}
