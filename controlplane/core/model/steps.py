"""Work that pauses: whoever drives it lets others run meanwhile, or runs it to its end at once.

What may take long is a generator that yields None every few milliseconds. Nothing else may change what it works on
until it has ended; others may look, and the daemon's heartbeat goes out (``daemon.pacing``).
"""

from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")

Steps = Generator[None, None, _Result]


def run(steps: Steps[_Result]) -> _Result:
    """Run to the end at once, and return what the steps return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result


def in_chunks(items: Iterable[_Item], most: int = 256) -> Iterator[list[_Item]]:
    """The items as they are now, in lists of at most so many: pause after each."""
    known = list(items)
    for first in range(0, len(known), most):
        yield known[first : first + most]
