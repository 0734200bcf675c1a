"""A few of the kills that ``make soak-kills`` makes a thousand of."""

import asyncio
from pathlib import Path

from .soak import soak


def test_no_request_fails_by_us(tmp_path: Path) -> None:
    assert asyncio.run(soak(12, 3, tmp_path)) == 0
