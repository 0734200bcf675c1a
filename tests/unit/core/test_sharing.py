"""What turns would take alone, of the time that they take, is learned from the turns that end."""

import pytest

from controlplane.core.estimators.saturation import BatchSaturation, Prefilled
from controlplane.core.model.events import TurnEnded


def add(
    seen: BatchSaturation, output_tokens: int, decode_ns: int, took_ns: int, alone_ns: int, *, alone: bool
) -> None:
    prefilled = Prefilled(took_ns=took_ns, alone_ns=alone_ns, alone=alone)
    ended = TurnEnded(program_id="a", turn_id="a.1", output_tokens=output_tokens, service_ns=took_ns + decode_ns)
    seen.add(prefilled, ended, alone=alone)


def test_only_turns_that_were_alone_raise_what_a_token_takes_alone() -> None:
    """As after a change to a slower engine."""
    seen = BatchSaturation()
    add(seen, 101, 1000, 0, 0, alone=True)
    add(seen, 101, 2000, 0, 0, alone=True)
    assert seen.token_ns == pytest.approx(10.2)
    for _ in range(300):
        add(seen, 101, 2000, 0, 0, alone=True)
    assert (seen.token_ns, seen.marginal_throughput) == (
        pytest.approx(20.0, rel=0.01),
        pytest.approx(1.0, abs=0.01),
    )
