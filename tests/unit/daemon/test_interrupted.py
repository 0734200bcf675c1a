"""Ctrl-C in a command that watches."""

import os
import signal
import time

import pytest

from controlplane.cli import ask


class Finalized:
    """Python drops what is raised in here."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_nobody_could_take_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "_AGAIN_S", 0.05)
    before = signal.getsignal(signal.SIGINT)
    watched = 0
    with ask.until_interrupted():
        Finalized()
        watched += 1  # the first one was dropped
        time.sleep(30)
        watched += 1
    assert watched == 1
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
