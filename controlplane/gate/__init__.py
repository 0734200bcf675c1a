"""The gate: a plain ASGI middleware that holds a program's turns until the daemon grants it a slot.

It runs in the HTTP process of the engine (or before any other server) and needs the standard library only.
"""

from controlplane.gate.authority import Mode
from controlplane.gate.continuity import Continuity
from controlplane.gate.gate import Gate
from controlplane.gate.identity import BadIdentity, Identity, identify
from controlplane.gate.inbox import Inbox
from controlplane.gate.limits import GateLimits
from controlplane.gate.link import GateLink
from controlplane.gate.middleware import GatedRequest, GateMiddleware, HealthPage
from controlplane.gate.requests import GATED_PATHS, MORE_PATHS
from controlplane.gate.tickets import Entered, GateCounters, Refused, Ticket

__all__ = [
    "GATED_PATHS",
    "MORE_PATHS",
    "BadIdentity",
    "Continuity",
    "Entered",
    "Gate",
    "GateCounters",
    "GateLimits",
    "GateLink",
    "GateMiddleware",
    "GatedRequest",
    "HealthPage",
    "Identity",
    "Inbox",
    "Mode",
    "Refused",
    "Ticket",
    "identify",
]
