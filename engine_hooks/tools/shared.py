"""The reporter of this process, as the environment says: what every adapter reports through.

| variable | |
| --- | --- |
| ``PENSTOCK_TOOLS`` | ``on`` (default) or ``off``: adapters install nothing |
| ``PENSTOCK_TOOL_SLOTS`` | ``on``: a tool waits until the daemon says that the host has room; default ``off`` |
| ``PENSTOCK_TOOL_PATIENCE_S`` | seconds that it waits at most; default 300 |
| ``PENSTOCK_NODE`` | the serving node's name; default ``local`` |
| ``PENSTOCK_NATS_URL`` | the node's bus, or ``unix:PATH``, the daemon's socket, which needs no credentials |
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
from engine_hooks.guard import Guard

log = logging.getLogger("penstock")

MODE_VARIABLE = "PENSTOCK_TOOLS"
SLOTS_VARIABLE = "PENSTOCK_TOOL_SLOTS"
PATIENCE_VARIABLE = "PENSTOCK_TOOL_PATIENCE_S"
NODE_VARIABLE = "PENSTOCK_NODE"
DEFAULT_NODE = "local"
_PATIENCE_S = 300.0
PROGRAM_HEADER = "x-penstock-program-id"
PARENT_HEADER = "x-penstock-parent-id"

guard = Guard()
"""Counts the failures of this process's adapters."""


def is_on(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether adapters may install themselves."""
    return _switch(environment, MODE_VARIABLE, "on")


def _switch(environment: Mapping[str, str], variable: str, default: str) -> bool:
    text = environment.get(variable, "").strip().lower() or default
    if text not in ("on", "off"):
        log.warning("penstock: %s: expected on or off, got %r: off", variable, text[:80])
    return text == "on"


def patience_s(environment: Mapping[str, str] = os.environ) -> float:
    """How long a tool waits for a slot at most."""
    text = environment.get(PATIENCE_VARIABLE, "").strip()
    try:
        value = float(text or _PATIENCE_S)
    except ValueError:
        value = -1.0
    if 0 <= value < float("inf"):
        return value
    log.warning("penstock: %s: expected seconds, got %r: %g", PATIENCE_VARIABLE, text[:80], _PATIENCE_S)
    return _PATIENCE_S


@functools.cache
def reporter() -> ToolReporter:
    """The one reporter of this process."""
    node = os.environ.get(NODE_VARIABLE, "").strip() or DEFAULT_NODE
    try:
        slots = _switch(os.environ, SLOTS_VARIABLE, "off")
        return ToolReporter(url=bus_of(node), node=node, slots=slots, patience_s=patience_s())
    except ConfigError as error:
        log.warning("penstock: %s: %s: nothing is reported", NODE_VARIABLE, error)
        return ToolReporter(url="", node=DEFAULT_NODE, enabled=False)


def bus_of(node: str) -> Callable[[], str]:
    """How to find the bus: as everybody does, else the daemon's socket where that can be opened.

    A process that may not read the endpoint file (it may hold a password) may still be let to the socket.
    """
    told = resolve_url(None, node)

    def find() -> str:
        try:
            return told()
        except (ConfigError, EngineUnavailable):
            path = socket_path(node)
            if path.exists():
                return f"unix:{path}"
            raise

    return find
