"""From a history that breaks a promise to a short one: faults and programs are left out while it still does."""

from collections.abc import Callable
from dataclasses import replace

from .world import Plan, Result


def shrunk(failed: Result, run: Callable[[Plan], Result], most_runs: int = 60) -> Result:
    """Leave one fault out after the other, then have fewer programs. ``most_runs``: simulations, at most."""
    best, left = failed, most_runs
    index = 0
    while index < len(best.plan.faults) and left > 0:
        left -= 1
        faults = best.plan.faults[:index] + best.plan.faults[index + 1 :]
        tried = run(replace(best.plan, faults=faults))
        if tried.violations:
            best = tried
        else:
            index += 1
    programs = best.plan.programs // 2
    while programs > 0 and left > 0:
        left -= 1
        tried = run(replace(best.plan, programs=programs))
        if not tried.violations:
            break
        best, programs = tried, programs // 2
    return best
