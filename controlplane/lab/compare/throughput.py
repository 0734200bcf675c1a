"""Output tokens a second over the time of a run."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from controlplane.core.types import NANOSECONDS_PER_SECOND
from controlplane.lab.workload.records import TurnRecord
from controlplane.lab.workload.run import RunResult

BINS = 80


def tokens_per_s(run: RunResult, until_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The edges of ``BINS`` equal spans since the first arrival, in s, and the output tokens a second in each.

    A turn's tokens come evenly between its first one and its end. Turns that failed have none.
    """
    edges = np.linspace(0.0, max(until_s, 1e-9), BINS + 1)
    began_ns = min((program.arrived_ns for program in run.programs), default=0)
    first, last, tokens = _spans(run.turns, began_ns)
    if not tokens.size:
        return edges, np.zeros(BINS)
    # What each turn has put out by each edge: the difference of two edges is what it did between them.
    done = np.clip((edges[:, None] - first) / np.maximum(last - first, 1e-9), 0.0, 1.0) @ tokens
    return edges, np.diff(done) / np.diff(edges)


def _spans(turns: Sequence[TurnRecord], began_ns: int) -> tuple[NDArray[np.float64], ...]:
    """First token and end in seconds, and output tokens, of each turn that ended well."""
    ended = [turn for turn in turns if not turn.error and turn.first_token_ns]
    first, last, tokens = (
        np.asarray([getattr(turn, name) for turn in ended], dtype=np.float64)
        for name in ("first_token_ns", "ended_ns", "output_tokens")
    )
    return (first - began_ns) / NANOSECONDS_PER_SECOND, (last - began_ns) / NANOSECONDS_PER_SECOND, tokens
