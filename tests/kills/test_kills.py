"""A few of the kills that ``make soak-kills`` makes a thousand of."""

from pathlib import Path

import pytest

from .soak import soak

pytestmark = pytest.mark.asyncio


async def test_no_request_fails_by_us(tmp_path: Path) -> None:
    assert await soak(12, 3, tmp_path) == 0
