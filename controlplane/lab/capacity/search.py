"""The most of something that still holds, asked as seldom as may be: doubling, then bisection."""

from collections.abc import Callable
from dataclasses import dataclass

_PRECISION = 16  # the answer is exact up to so many, and to that part of it beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """``number``: the largest that was tried below which none that was tried fails; 0 where even 1 fails."""

    number: int
    tried: dict[int, bool]  # whether it holds

    @property
    def fails_at(self) -> int | None:
        """The smallest that was tried and fails; None: the search ended at its most."""
        return min((n for n, holds in self.tried.items() if not holds), default=None)

    @property
    def holds_again(self) -> list[int]:
        """What holds beyond one that fails: the answer is noisy there, or not monotone."""
        return sorted(n for n, holds in self.tried.items() if holds and n > self.number)


def most(holds: Callable[[int], bool], *, first: int, limit: int) -> Found:
    """Search from ``first`` between 1 and ``limit``, each number once.

    Where ``holds`` is monotone, the answer is the largest number that holds. Where it is not, it is one below which
    nothing that was tried fails: the gap below the answer is tried too, and a failure there sends the search down.
    """
    tried: dict[int, bool] = {0: True}
    number = min(max(1, first), limit)
    while number:
        tried[number] = holds(number)
        number = _next(tried, limit)
    del tried[0]
    low, _ = _ends(tried, limit)
    return Found(number=low, tried=tried)


def _ends(tried: dict[int, bool], limit: int) -> tuple[int, int]:
    """The answer so far, and the smallest number that fails or is out of bounds."""
    high = min((n for n, kept in tried.items() if not kept), default=limit + 1)
    return max((n for n, kept in tried.items() if kept and n < high), default=0), high


def _next(tried: dict[int, bool], limit: int) -> int:
    """What to try next; 0: nothing."""
    low, high = _ends(tried, limit)
    if high > limit and low < limit:
        return min(2 * low, limit)
    if high <= limit and high - low > max(1, low // _PRECISION):
        return (low + high) // 2
    below = max((n for n in tried if n < low), default=0)
    return low - low // 4 if below <= low // 2 and low > 3 else 0
