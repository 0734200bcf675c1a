"""A few of the inputs that ``make soak-malformed`` makes a million of."""

import asyncio
from pathlib import Path

from .soak import run


def test_nothing_ends_hangs_or_grows(tmp_path: Path) -> None:
    assert asyncio.run(run(10_000, 3, tmp_path)) == 0
