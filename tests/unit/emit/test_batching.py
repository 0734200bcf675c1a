"""Cutting a queue into batches."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.model.errors import LocalEventError
from controlplane.core.model.events import Event
from controlplane.emit.batching import pack, runs

EVENT = Event()


@given(st.lists(st.integers(1, 60), unique=True).map(sorted), st.integers(1, 8))
def test_runs_keep_everything_in_order_without_gaps(sequences: list[int], limit: int) -> None:
    cut = list(runs([(sequence, 0, EVENT) for sequence in sequences], limit))
    assert [item[0] for run in cut for item in run] == sequences
    for run in cut:
        assert 1 <= len(run) <= limit
        assert [item[0] for item in run] == list(range(run[0][0], run[0][0] + len(run)))


def encode_double(first: int, items: Sequence[tuple[int, Event]]) -> bytes:
    """At_ns bytes for each event; a negative one cannot be encoded."""
    if any(at_ns < 0 for at_ns, _ in items):
        raise LocalEventError("negative")
    return b"x" * sum(at_ns for at_ns, _ in items)


@given(st.lists(st.integers(-1, 12), min_size=1, max_size=40))
def test_packing_leaves_out_only_what_fits_in_no_batch(sizes: list[int]) -> None:
    packed, rejected = pack([(n, size, EVENT) for n, size in enumerate(sizes)], encode_double, 10)
    good = [size for size in sizes if 0 <= size <= 10]
    assert sum(one.events for one in packed) == len(good)
    assert sum(len(one.data) for one in packed) == sum(good)
    assert all(len(one.data) <= 10 for one in packed)
    assert len(rejected) == len(sizes) - len(good)
