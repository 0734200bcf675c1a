"""Long work in the event loop, which others have every few milliseconds meanwhile."""

import gc
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from anyio.lowlevel import checkpoint

from controlplane.core.model.steps import Steps, run

_Result = TypeVar("_Result")
_Argument = TypeVar("_Argument")

STEP_S = 0.02  # after which others run: a heartbeat is late by little more
_MANY = 10_000  # programs: to look at all of their records takes the collector 20 ms
_NEAR = 5  # of ten collections of what is young, behind which all is looked at


class Pacer:
    """Drives steps, one work after the other. ``clock_s``: seconds on the wall."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self.is_busy = False  # work is under way
        self._after: list[Callable[[], None]] = []

    async def drive(self, steps: Steps[_Result]) -> _Result:
        """Run the steps to their end, also when cancelled: what is half done is nobody's state."""
        self.is_busy, since_s = True, self._clock_s()
        try:
            while True:
                next(steps)
                if self._clock_s() - since_s >= STEP_S:
                    spare_new_records()
                    await checkpoint()
                    since_s = self._clock_s()
        except StopIteration as end:
            result: _Result = end.value
            return result
        except BaseException:
            run(steps)
            raise
        finally:
            self.is_busy = False
            after, self._after = self._after, []
            for work in after:
                work()

    def between(self, work: Callable[[_Argument], None]) -> Callable[[_Argument], None]:
        """The work that must not fall between two steps: it is done at once, or when those that run have ended."""

        def do(argument: _Argument) -> None:
            if self.is_busy:
                self._after.append(partial(work, argument))
            else:
                work(argument)

        return do


def spare_records(programs: int) -> None:
    """Keep the collector's steps short: among very many programs it looks no more at what it found alive.

    Records have no cycles, and go with their last name. What else was a cycle then waits until there are fewer.
    """
    if programs > _MANY:
        gc.collect(1)
        gc.freeze()
    elif gc.get_freeze_count():
        gc.unfreeze()


def spare_new_records() -> None:
    """Likewise while long work makes very many, long before they are counted; for a pause of it."""
    if gc.get_count()[2] > _NEAR:
        gc.collect(1)
        gc.freeze()
