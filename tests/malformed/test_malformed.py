"""A few of the inputs that ``make soak WHAT=malformed`` makes a million of."""

from pathlib import Path

from .soak import run


async def test_nothing_ends_hangs_or_grows(tmp_path: Path) -> None:
    assert await run(5_000, 3, tmp_path) == 0
