"""A few of the kills that ``make soak WHAT=kills`` makes a thousand of."""

from pathlib import Path

from .soak import soak


async def test_no_request_fails_by_us(tmp_path: Path) -> None:
    """What is judged by a clock (2) is left to the soak, whose machine does nothing else."""
    assert await soak(12, 3, tmp_path, longest_s=4) != 1
