"""What a demo takes from who runs it: nothing that configures a node.

An operator's shell names their own node by variables. The demo's daemons, engines and clients would obey them, and
write to that node's folder or meet its bus.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_PREFIX = "PENSTOCK_"
_OTHERS = ("NOTIFY_SOCKET",)  # a demo's daemon is not the unit that systemd waits for


def own_environment(**variables: str) -> dict[str, str]:
    """For a process that belongs to a demo: this process's, without what configures a node, and ``variables``."""
    kept = {name: value for name, value in os.environ.items() if not _configures(name)}
    return {**kept, **variables}


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within, nothing configures this process either, and a signal to end lets it end what it has started."""
    theirs = {name: os.environ.pop(name) for name in tuple(os.environ) if _configures(name)}
    is_main = threading.current_thread() is threading.main_thread()  # no other one may ask for signals
    signals = (signal.SIGTERM, signal.SIGHUP) if is_main else ()
    before = {number: signal.signal(number, _end) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.environ.update(theirs)


def _configures(name: str) -> bool:
    return name.startswith(_PREFIX) or name in _OTHERS


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
