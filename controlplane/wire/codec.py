"""Bytes on the bus to records of core and back: all that other rooms need of protobuf."""

from controlplane.wire.command_codec import decode_commands, encode_commands, last_command_id
from controlplane.wire.event_codec import DecodedBatch, decode_events, decoding_events, encode_events
from controlplane.wire.heartbeat import Heartbeat, decode_heartbeat, encode_heartbeat

__all__ = [
    "DecodedBatch",
    "Heartbeat",
    "decode_commands",
    "decode_events",
    "decode_heartbeat",
    "decoding_events",
    "encode_commands",
    "encode_events",
    "encode_heartbeat",
    "last_command_id",
]
