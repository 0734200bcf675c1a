"""The connection to the daemon that a command asks, and Ctrl-C while it watches."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controlplane.operate.client import ControlClient

_AGAIN_S = 1.0


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Let Ctrl-C end the body without an error.

    Python drops a ``KeyboardInterrupt`` that is raised where nobody can catch it, as in a finalizer or in one of
    gRPC's callbacks. So it is raised again each second until it is caught.
    """

    def interrupt(number: int, frame: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGALRM)}
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def daemon(api: str | None, node: str, state_dir: Path | None) -> "Iterator[ControlClient]":
    """Connect to the daemon's control API. Raises ``EngineUnavailable`` if it does not answer."""
    from controlplane.operate.client import connect

    with connect(api, node, state_dir) as client:
        yield client
