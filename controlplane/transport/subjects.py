"""The names on the bus: subjects, the stream, publishers.

Everything lies below ``penstock.v1.<node>``, so one NATS account or a leaf node can carry many nodes, and a
later version of the protocol can run beside this one.
"""

import re

from controlplane.core.model.errors import ConfigError

PREFIX = "penstock.v1"
TOOL_ROLE = "tool"
"""The role of those who tell of runs and tools."""
CONTROL_ROLE = "control"
"""The daemon's own, in which it tells what an operator ordered."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]+")


def check_name(value: str, *, field: str) -> str:
    """Return ``value`` if it can be one token of a subject, a stream's name and a file's name.

    :raises ConfigError: it has other characters than letters, digits, ``-`` and ``_``, or not 1 to 64 of them.
    """
    if _NAME.fullmatch(value):
        return value
    suggestion = _NOT_IN_NAME.sub("-", value).strip("-")[:64]
    hint = f"; {suggestion!r} would do" if suggestion else ""
    raise ConfigError(
        f"expected {field} to be 1 to 64 letters, digits, '-' or '_', got {value[:80]!r}{hint}", field=field
    )


def event_subject(node: str, role: str) -> str:
    """Where the publisher with this role sends its batches.

    ``engine`` and ``engine.30000``: which of several it is has a token of its own, since a permission of the server
    can name all engines by whole tokens only.
    """
    kind, _, which = check_name(role, field="role").partition("-")
    last = f"{kind}.{which}" if kind and which else role
    return f"{PREFIX}.{check_name(node, field='node')}.event.{last}"


def all_events_subject(node: str) -> str:
    """A wildcard for the events of every role."""
    return f"{PREFIX}.{check_name(node, field='node')}.event.>"


def role_of_subject(subject: str) -> str:
    """The role that ``event_subject`` was made of; empty for another kind of subject."""
    _, event, role = subject.removeprefix(f"{PREFIX}.").partition(".event.")
    return role.replace(".", "-", 1) if event else ""


def command_subject(node: str) -> str:
    """Where the daemon sends its command batches."""
    return f"{PREFIX}.{check_name(node, field='node')}.command"


def tool_command_subject(node: str) -> str:
    """Where the daemon repeats those commands that are for agents' hooks, who need not hear the others."""
    return f"{command_subject(node)}.tool"


def heartbeat_subject(node: str) -> str:
    """Where the daemon shows that it lives."""
    return f"{PREFIX}.{check_name(node, field='node')}.heartbeat"


def status_subject(node: str) -> str:
    """Where the daemon answers requests for its status."""
    return f"{PREFIX}.{check_name(node, field='node')}.status"


def stream_name(node: str) -> str:
    """The JetStream stream that keeps a node's events."""
    return f"PENSTOCK-{check_name(node, field='node')}"


def publisher_name(node: str, role: str, boot_id: str) -> str:
    """``node/role/boot``: the boot id sets a restarted publisher's sequence apart from the old one's."""
    names = (("node", node), ("role", role), ("boot_id", boot_id))
    return "/".join(check_name(value, field=field) for field, value in names)
