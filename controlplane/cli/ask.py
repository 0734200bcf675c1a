"""The connection to the daemon that a command asks, and Ctrl-C while it watches."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from controlplane.core.model.errors import EngineUnavailable

if TYPE_CHECKING:
    from controlplane.operate.client import ControlClient

_AGAIN_S = 1.0
_ASK_AGAIN_S = 0.2

_Answer = TypeVar("_Answer")


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


def when_up(
    ask: "Callable[[ControlClient], _Answer]", api: str | None, node: str, state_dir: Path | None, *, wait_s: float
) -> _Answer:
    """Ask as soon as a daemon answers. Raises ``EngineUnavailable`` if none does within ``wait_s`` seconds."""
    until_s = time.monotonic() + wait_s
    while True:
        try:
            with daemon(api, node, state_dir) as client:
                return ask(client)
        except EngineUnavailable:
            if time.monotonic() >= until_s:
                raise
            time.sleep(_ASK_AGAIN_S)
