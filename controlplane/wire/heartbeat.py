"""The daemon's sign of life."""

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from controlplane.core.errors import RemoteEventError
from controlplane.wire._generated import control_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The daemon lives and has authority for another ``lease_ttl_ns`` from receipt.

    ``limit`` is how many root programs may be active (0: no limit), ``window`` the same before its caps.
    ``engine_policies`` is for ``controlplane.core.engine_policies.loads``. ``draining``: nobody new is let in.
    """

    node: str
    boot_id: str
    lease_ttl_ns: int
    limit: int
    window: float
    engine_policies: str = ""
    draining: bool = False


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """For the heartbeat subject."""
    return pb.Heartbeat(
        node=heartbeat.node,
        boot_id=heartbeat.boot_id,
        lease_ttl_ns=heartbeat.lease_ttl_ns,
        limit=heartbeat.limit,
        window=heartbeat.window,
        engine_policies=heartbeat.engine_policies,
        draining=heartbeat.draining,
    ).SerializeToString()


def decode_heartbeat(data: bytes) -> Heartbeat:
    """Read one.

    :raises RemoteEventError: the bytes are none, or a number is negative.
    """
    try:
        message = pb.Heartbeat.FromString(data)
    except DecodeError as error:
        raise RemoteEventError(f"malformed heartbeat of {len(data)} bytes: {error}") from error
    if not message.node or (message.lease_ttl_ns | message.limit) < 0 or not message.window >= 0:
        raise RemoteEventError(f"heartbeat that makes no sense: {str(message)[:200]}")
    return Heartbeat(
        node=message.node,
        boot_id=message.boot_id,
        lease_ttl_ns=message.lease_ttl_ns,
        limit=message.limit,
        window=message.window,
        engine_policies=message.engine_policies,
        draining=message.draining,
    )
