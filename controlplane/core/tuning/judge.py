"""What a step has brought, when the load may have changed with it.

What was measured before and after differs by the step and by the load. So either is held against a replay of its
own programs under the settings from *before* the step. How these two replays differ is the load's doing. How far
what was measured is from its replay was, before the step, the model's error, and by how much that has moved is what
the step did.

    effect = (measured after / replayed under the old settings) / (measured before / replayed) - 1

Of a share the same in differences. What remains in it is the part of the model's error that the new load brings.
"""

from math import isfinite

from controlplane.core.tuning.steps import SHARES, Step

_MOST_FACTOR = 2.0  # by which the replays of a time may differ until nobody can tell load and step apart
_MOST_POINTS = 0.25  # the same of a share


def effect(goal: str, step: Step, measured: float, replayed: float) -> float | None:
    """Of the step on the goal's figure: a ratio less 1, of a share a difference; None where it cannot be told.

    ``replayed``: what was heard since, under the settings from before the step.
    """
    figures = (step.measured, step.replayed, measured, replayed)
    if not all(map(isfinite, figures)):
        return None
    if goal in SHARES:
        return (measured - replayed) - (step.measured - step.replayed)
    if min(figures) <= 0:
        return None
    return (measured / replayed) / (step.measured / step.replayed) - 1


def load_moved(goal: str, step: Step, replayed: float) -> bool:
    """Whether the load is another one than when the step was chosen: the same settings would now give much else."""
    if goal in SHARES:
        return abs(replayed - step.replayed) > _MOST_POINTS
    return not step.replayed / _MOST_FACTOR <= replayed <= step.replayed * _MOST_FACTOR
