"""What was measured, as rows."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def first_tokens(taken: Mapping[tuple[str, int], Sequence[float]]) -> list[dict[str, Any]]:
    """A row for each way and size of prompt, of its times to the first token in ms."""
    return [
        {"way": way, "bytes": size, "n": len(times), "ttft_p50_ms": at(times, 50), "ttft_p99_ms": at(times, 99)}
        for (way, size), times in taken.items()
    ]


def at(times: Sequence[float], percent: int) -> float:
    """The percentile."""
    return round(statistics.quantiles(times, n=100, method="inclusive")[percent - 1], 2)
