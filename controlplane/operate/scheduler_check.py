"""What the doctor finds of an engine whose front end has no place for a gate: whether the other half works."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from controlplane.core.model.errors import ControlPlaneError
from controlplane.core.model.events import PLUGINLESS
from controlplane.core.model.places import server_of
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, seconds
from controlplane.fleet.upstream import SAYING, gateless_front_end
from controlplane.operate.finding import Finding, bad, look, ok
from controlplane.transport.loopback import open_url

_SPEAKS_WITHIN_NS = seconds(15)  # an engine tells of its pool once a second
_INSTALL = "install penstock in the engine's environment, with the daemon's PENSTOCK_NODE; its log says more"
_VERIFY = "python -m engine_hooks.vllm.verify, or .sglang.verify, in the engine's environment"


def front_end_of(url: str, timeout_s: float) -> str:
    """What serves HTTP there, where that is known to have no place for a gate; empty for anything else."""
    for path in SAYING:
        with (
            contextlib.suppress(OSError, ValueError, HTTPException),
            open_url(url.rstrip("/") + path, timeout_s) as it,
        ):
            said = json.load(it)
            if found := gateless_front_end(said if isinstance(said, dict) else {}):
                return found
    return ""


def check_scheduler(url: str, front_end: str, node: str, engines: Callable[[], Sequence[Any]]) -> Iterator[Finding]:
    """``engines``: asks the node's daemon for those that it knows. Raises nothing that is ``ControlPlaneError``."""
    outside = f"run `penstock gate --upstream {url}` before it, and point agents there"
    yield look("gate", f"none in this server: {front_end} has no place for one", outside)
    server = f"{node}/{urlsplit(url).port or 80}"
    try:
        rows = [row for row in engines() if server_of(row.place) == server]
    except ControlPlaneError:
        found = "whether its scheduler side is at work the daemon knows, which does not answer"
        yield look("scheduler", found, f"start `penstock up --node {node}`, and ask again")
        return
    silent = [row for row in rows if not 0 < row.heard_ns < _SPEAKS_WITHIN_NS]
    passive = [row for row in rows if row.passive]
    if not rows or silent or any(row.passive in PLUGINLESS for row in rows):
        yield bad("scheduler", f"it tells the daemon of {node} nothing", _INSTALL)
    elif passive:
        yield bad("scheduler", "; ".join(f"{row.place} is passive: {row.passive}" for row in passive), _VERIFY)
    else:
        heard_s = max(row.heard_ns for row in rows) / NANOSECONDS_PER_SECOND
        places = ", ".join(row.place for row in rows)
        yield ok("scheduler", f"at work (events, pins, order): {places}, heard {heard_s:.1f} s ago")
