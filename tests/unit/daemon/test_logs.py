"""A log that nobody reads holds up nobody who logs."""

import os
import sys

import pytest
import structlog

from controlplane.daemon.process.logs import configure, logger


def test_a_pipe_that_nobody_reads_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is bounded; once somebody reads it goes on, and says how much is left out."""
    before = structlog.get_config()
    reads, writes = os.pipe()
    lines, size = 2000, 2000
    with os.fdopen(writes, "w") as pipe, os.fdopen(reads) as read:
        monkeypatch.setattr(sys, "stderr", pipe)
        try:
            configure(json=True)
            for number in range(lines):
                logger("test").warning(f"{number}{'x' * size}", number=number)  # each of its own kind
            whole, count = 0, ""
            while not count:
                line = read.readline()
                whole += '"number"' in line
                count = line if "lines left out" in line else ""
        finally:
            structlog.configure(**before)
        assert 100 < whole < 1000
        assert f'"count": {lines - whole}' in count
