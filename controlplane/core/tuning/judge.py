"""What a step has brought, when the load may have changed with it.

What was measured before and after differs by the step and by the load. So either is held against a replay of its
own programs under the settings from *before* the step. How these two replays differ is the load's doing. How far
what was measured is from its replay was, before the step, the model's error, and by how much that has moved is what
the step did.

    effect = (measured after / replayed under the old settings) / (measured before / replayed) - 1

Of a share the same in differences. What remains in it is the part of the model's error that the new load brings.

Where the load has become quite another one, that part may be anything. Then the model is asked how well it tells
the new load under the step's setting, which is in force and measured: where it does, the two replays of that load
under either setting say what the step does.
"""

from math import isfinite

from controlplane.core.tuning.steps import SHARES, Step

_MOST_FACTOR = 2.0  # by which the replays of a time may differ until nobody can tell load and step apart
_MOST_POINTS = 0.25  # the same of a share
_TOLD_RATIO = 0.1  # by which a replay may miss what was measured and still tell a load
_TOLD_POINTS = 0.05  # the same of a share


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


def effect_by_model(goal: str, measured: float, replayed: float, replayed_before: float) -> float | None:
    """The step's effect by two replays of what was heard since: as it was, and under the settings from before.

    None where the first of them misses what was measured.
    """
    if not all(map(isfinite, (measured, replayed, replayed_before))):
        return None
    if goal in SHARES:
        return replayed - replayed_before if abs(replayed - measured) <= _TOLD_POINTS else None
    if min(measured, replayed, replayed_before) <= 0 or abs(replayed / measured - 1) > _TOLD_RATIO:
        return None
    return replayed / replayed_before - 1


def load_moved(goal: str, step: Step, replayed: float) -> bool:
    """Whether the load is another one than when the step was chosen: the same settings would now give much else."""
    if goal in SHARES:
        return abs(replayed - step.replayed) > _MOST_POINTS
    return not step.replayed / _MOST_FACTOR <= replayed <= step.replayed * _MOST_FACTOR
