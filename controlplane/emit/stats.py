"""Counts of an emitter's work, for health pages and tests."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class EmitterStats:
    """Counts since the emitter was made, or since the fork in a forked child."""

    sent: int = 0  # events that the server confirmed
    batches: int = 0
    queued: int = 0  # events that wait
    dropped: int = 0  # lost to a full queue, or to an emitter that was closed or could not run
    rejected: int = 0  # events that could not be encoded, or too large for the server
    connected: bool = False
    direct: bool = False  # connected, and to the daemon itself: its Unix socket
    connections: int = 0
    callback_errors: int = 0  # exceptions of on_command, on_heartbeat and state
    malformed: int = 0  # messages from the bus that made no sense
    last_error: str = ""
