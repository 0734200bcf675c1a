"""This process's reporter, configured by the environment, which every adapter uses.

| variable | meaning |
| --- | --- |
| ``PENSTOCK_TOOLS`` | ``on`` (default) or ``off``: adapters install nothing |
| ``PENSTOCK_TOOL_SLOTS`` | ``on``: a tool waits until the daemon says that the host has room; default ``off`` |
| ``PENSTOCK_TOOL_PATIENCE_S`` | most seconds that a tool waits; default 300 |
| ``PENSTOCK_NODE`` | the serving node's name; default ``local`` |
| ``PENSTOCK_NATS_URL`` | the node's bus, or ``unix:PATH``, the daemon's socket, which needs no credentials |
| ``PENSTOCK_NATS_URL_FILE`` | a file that contains this URL |
| ``PENSTOCK_STATE_DIR`` | folder of this machine's daemon, to find the bus without a URL |

An agent must run whether or not any of this is right: an error is logged once, and then nothing is reported.
"""

import functools
import logging
import os
from collections.abc import Callable, Mapping

from controlplane.core.model.errors import ConfigError, EngineUnavailable
from controlplane.emit.tool_reporter import ToolReporter
from controlplane.transport.endpoint import resolve_url, socket_path
from controlplane.transport.roles import BusRole
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
    """True if adapters may install themselves."""
    return is_switched_on(environment, MODE_VARIABLE, default="on")


def is_switched_on(environment: Mapping[str, str], variable: str, *, default: str) -> bool:
    """True for ``on``, False for ``off``; anything else is logged and counts as off."""
    text = environment.get(variable, "").strip().lower() or default
    if text not in ("on", "off"):
        log.warning("penstock: %s: expected on or off, got %r: off", variable, text[:80])
    return text == "on"


def seconds(environment: Mapping[str, str], variable: str, default_s: float) -> float:
    """A number of seconds; anything else is logged, and the default counts."""
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
    """A way to find the bus: the usual one, or else the daemon's socket if it can be opened.

    A process that may not read the endpoint file, which holds passwords, may still have access to the socket.
    """
    resolve = resolve_url(None, node, role=BusRole.AGENT)

    def find() -> str:
        try:
            return resolve()
        except (ConfigError, EngineUnavailable):
            path = socket_path(node)
            if path.exists():
                return f"unix:{path}"
            raise

    return find
