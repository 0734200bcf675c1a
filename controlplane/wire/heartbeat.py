"""The daemon's sign of life."""

from dataclasses import dataclass, fields

from google.protobuf.message import DecodeError

from controlplane.core.model.errors import RemoteEventError
from controlplane.wire._generated import control_pb2 as pb
from controlplane.wire.command_codec import MOST_COMMAND_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The daemon lives and has authority for another ``lease_ttl_ns`` from receipt.

    ``limit`` is how many root programs may be active (0: no limit), ``window`` the same before its caps.
    ``engine_policies`` is for ``core.policies.engine_policies.loads``. ``draining``: nobody new is let in.
    ``command_id`` is the number of the last command: whoever has not heard it misses one. ``asked_ago_ns`` ago the
    daemon asked everybody for what the stream may have lost in ``lost_ns`` before that; 0: it did not ask yet.
    ``fence`` is the lease by which it serves, where several daemons may; leases only grow. ``slots_for_children``:
    sub-agents ask for slots of their own. ``end_interval_ns``: from a program's end to the next while others wait.
    ``retain_most_ns``: clients may have contexts kept for so long. ``host_tier``: there is memory below the device;
    ``engine_obeys``: some engine keeps, moves and frees contexts as it is told.
    """

    node: str
    boot_id: str
    lease_ttl_ns: int
    limit: int
    window: float
    engine_policies: str = ""
    draining: bool = False
    command_id: int = 0
    asked_ago_ns: int = 0
    lost_ns: int = 0
    fence: int = 0
    slots_for_children: bool = False
    end_interval_ns: int = 0
    retain_most_ns: int = 0
    host_tier: bool = False
    engine_obeys: bool = False


_FIELDS = tuple(field.name for field in fields(Heartbeat))


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """For the heartbeat subject."""
    return pb.Heartbeat(**{name: getattr(heartbeat, name) for name in _FIELDS}).SerializeToString()


def decode_heartbeat(data: bytes) -> Heartbeat:
    """Read one.

    :raises RemoteEventError: the bytes are none, or a number is negative or one that nobody counts to.
    """
    try:
        message = pb.Heartbeat.FromString(data)
    except DecodeError as error:
        raise RemoteEventError(f"malformed heartbeat of {len(data)} bytes: {error}") from error
    counts = (
        *(message.lease_ttl_ns, message.limit, message.command_id),
        *(message.asked_ago_ns, message.lost_ns, message.fence, message.end_interval_ns),
        message.retain_most_ns,
    )
    if not message.node or min(counts) < 0 or message.command_id > MOST_COMMAND_ID or not message.window >= 0:
        raise RemoteEventError(f"heartbeat that makes no sense: {str(message)[:200]}")
    return Heartbeat(**{name: getattr(message, name) for name in _FIELDS})
