"""The reporter of this process, as the environment says: what every adapter reports through.

| variable | |
| --- | --- |
| ``PENSTOCK_TOOLS`` | ``on`` (default) or ``off``: adapters install nothing |
| ``PENSTOCK_TOOL_SLOTS`` | ``on``: a tool waits until the daemon says that the host has room; default ``off`` |
| ``PENSTOCK_TOOL_PATIENCE_S`` | seconds that it waits at most; default 300 |
| ``PENSTOCK_NODE`` | the serving node's name; default ``local`` |
| ``PENSTOCK_NATS_URL`` | the node's bus, or ``unix:PATH``, the daemon's socket, which needs no credentials |
| ``PENSTOCK_NATS_URL_FILE`` | a file with that URL |
| ``PENSTOCK_STATE_DIR`` | where the daemon of this machine says where it is, unless the URL does |

An agent must run whether or not any of this is right: what is wrong is logged once, and nothing is reported then.
"""

import functools
import logging
import os
from collections.abc import Callable, Mapping

from controlplane.core.errors import ConfigError, EngineUnavailable
from controlplane.emit.tool_reporter import ToolReporter
from controlplane.wire.endpoint import resolve_url, socket_path
from controlplane.wire.roles import BusRole
from engine_hooks.guard import Guard

log = logging.getLogger("penstock")

MODE_VARIABLE = "PENSTOCK_TOOLS"
SLOTS_VARIABLE = "PENSTOCK_TOOL_SLOTS"
PATIENCE_VARIABLE = "PENSTOCK_TOOL_PATIENCE_S"
NODE_VARIABLE = "PENSTOCK_NODE"
DEFAULT_NODE = "local"
_PATIENCE_S = 300.0
_MOST_S = 7 * 86_400.0
PROGRAM_HEADER = "x-penstock-program-id"
PARENT_HEADER = "x-penstock-parent-id"

guard = Guard()
"""Counts the failures of this process's adapters."""


def is_on(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether adapters may install themselves."""
    return is_switched_on(environment, MODE_VARIABLE, default="on")


def is_switched_on(environment: Mapping[str, str], variable: str, *, default: str) -> bool:
    """``on`` or ``off``; off for anything else, which is warned of."""
    text = environment.get(variable, "").strip().lower() or default
    if text not in ("on", "off"):
        log.warning("penstock: %s: expected on or off, got %r: off", variable, text[:80])
    return text == "on"


def seconds(environment: Mapping[str, str], variable: str, default_s: float) -> float:
    """A length of time; the default for what is none, which is warned of."""
    text = environment.get(variable, "").strip()
    if not text:
        return default_s
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0 <= value <= _MOST_S:
        return value
    log.warning("penstock: %s: expected seconds up to %g, got %r: %g", variable, _MOST_S, text[:80], default_s)
    return default_s


@functools.cache
def reporter() -> ToolReporter:
    """The one reporter of this process."""
    node = os.environ.get(NODE_VARIABLE, "").strip() or DEFAULT_NODE
    try:
        slots = is_switched_on(os.environ, SLOTS_VARIABLE, default="off")
        patience_s = seconds(os.environ, PATIENCE_VARIABLE, _PATIENCE_S)
        return ToolReporter(url=bus_of(node), node=node, slots=slots, patience_s=patience_s)
    except ConfigError as error:
        log.warning("penstock: %s: %s: nothing is reported", NODE_VARIABLE, error)
        return ToolReporter(url="", node=DEFAULT_NODE, enabled=False)


def bus_of(node: str) -> Callable[[], str]:
    """How to find the bus: as everybody does, else the daemon's socket where that can be opened.

    A process that may not read the endpoint file (it may hold a password) may still be let to the socket.
    """
    told = resolve_url(None, node, role=BusRole.AGENT)

    def find() -> str:
        try:
            return told()
        except (ConfigError, EngineUnavailable):
            path = socket_path(node)
            if path.exists():
                return f"unix:{path}"
            raise

    return find
