"""What the stream of a node is: its events, and the commands of its daemon."""

from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from controlplane.transport.subjects import all_events_subject, command_subject, stream_name

SIZES = (1 << 30, 1 << 28, 1 << 26, 1 << 24)  # in bytes: the first that the server's disk has room for
_MAX_AGE_S = 24 * 3600.0
_SET = ("subjects", "retention", "storage", "discard", "max_bytes", "max_age", "no_ack")
_UNLIMITED = ("max_msgs", "max_msgs_per_subject", "max_msg_size", "max_consumers")


def node_stream(node: str, max_bytes: int) -> StreamConfig:
    """The stream's settings."""
    return StreamConfig(
        name=stream_name(node),
        subjects=[all_events_subject(node), command_subject(node)],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.OLD,
        max_bytes=max_bytes,
        max_age=_MAX_AGE_S,
        no_ack=True,  # else who may publish an event could have the server answer on any subject
    )


def is_as(wanted: StreamConfig, known: StreamConfig) -> bool:
    """Whether a stream is what we would make of it: where it says so, and without a limit that we did not set."""
    if any(getattr(wanted, name) != getattr(known, name) for name in _SET):
        return False
    return not known.sealed and not any((getattr(known, name) or 0) > 0 for name in _UNLIMITED)
