"""Who may do what on the bus: the four users of a node, and the subjects that the server lets each of them use.

Everybody's permissions are lists of what is allowed; what is on none is refused. The embedded server's settings and
those that ``penstock bus config`` writes are both made of these.
"""

from dataclasses import dataclass
from enum import StrEnum

from controlplane.transport import subjects

_INBOX = "_INBOX"
_WHO_AM_I = "$SYS.REQ.USER.INFO"  # a user's own name and permissions, and the server's time


class BusRole(StrEnum):
    """As whom one connects."""

    DAEMON = "daemon"  # commands, keeps the stream
    ENGINE = "engine"  # the plugin beside an engine, its gate, the engine double: tells of turns, hears commands
    AGENT = "agent"  # hooks in agents, load generators: tells of runs and tools
    READER = "reader"  # hears all, tells nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """The subjects that a user may publish on, and those that it may hear."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def user_name(node: str, role: BusRole) -> str:
    """A server's users have different names, whichever account they are of."""
    return f"{subjects.check_name(node, field='node')}-{role}"


def reader_inbox(node: str) -> str:
    """What the subjects begin with where a reader hears answers: nobody hears those of others."""
    return f"{_INBOX}.{subjects.check_name(node, field='node')}.{BusRole.READER}"


def permissions(node: str, role: BusRole) -> Permissions:
    """What the server is to let ``role`` do. Its node's account holds nothing of other nodes."""
    # here, as `--help`, which names roles, need not know all events
    from controlplane.core.model.places import SERVING_ROLES

    everything = f"{subjects.PREFIX}.{subjects.check_name(node, field='node')}.>"
    command, heartbeat = subjects.command_subject(node), subjects.heartbeat_subject(node)
    match role:
        case BusRole.DAEMON:
            return Permissions(
                publish=(everything, "$JS.API.>", "$JS.FC.>", f"{_INBOX}.>", _WHO_AM_I),
                subscribe=(everything, f"{_INBOX}.>"),
            )
        case BusRole.ENGINE:
            own = [subjects.event_subject(node, kind) for kind in SERVING_ROLES]
            return Permissions(
                publish=tuple(subject for each in own for subject in (each, f"{each}.>")),
                subscribe=(command, heartbeat),
            )
        case BusRole.AGENT:
            return Permissions(
                publish=(subjects.event_subject(node, subjects.TOOL_ROLE),),
                subscribe=(subjects.tool_command_subject(node), heartbeat),
            )
        case BusRole.READER:
            return Permissions(
                publish=("$JS.API.INFO", f"$JS.API.STREAM.INFO.{subjects.stream_name(node)}", _WHO_AM_I),
                subscribe=(everything, f"{reader_inbox(node)}.>"),
            )
