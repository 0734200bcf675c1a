"""The transition table: every row, and every row that must not be there."""

from itertools import product

import pytest

from controlplane.core.model.errors import LocalEventError
from controlplane.core.model.lifecycle import TRANSITIONS, Trigger, next_status
from controlplane.core.model.types import Status

ROWS = """
    waiting queue   waiting
    waiting submit  active
    waiting admit   active
    waiting end     ended
    active  queue   active
    active  submit  active
    active  admit   active
    active  pause   paused
    active  end     ended
    paused  queue   waiting
    paused  submit  active
    paused  admit   active
    paused  end     ended
    ended   queue   waiting
    ended   submit  active
    ended   end     ended
"""
EXPECTED = {
    (Status(a), Trigger(t)): Status(b) for a, t, b in (row.split() for row in ROWS.split("\n") if row.split())
}


@pytest.mark.parametrize(("status", "trigger"), [pair for pair in product(Status, Trigger) if pair not in EXPECTED])
def test_each_missing_row_is_a_bug_of_ours(status: Status, trigger: Trigger) -> None:
    with pytest.raises(LocalEventError, match=f"a {status} program cannot {trigger}"):
        next_status(status, trigger)


def test_no_peer_can_cause_a_missing_row() -> None:
    peers = (Trigger.QUEUE, Trigger.SUBMIT, Trigger.END)
    assert all(pair in TRANSITIONS for pair in product(Status, peers))
