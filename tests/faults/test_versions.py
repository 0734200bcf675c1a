"""A gate and a daemon of two versions: what one of them does not know is left out, and no promise is broken."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from controlplane.core.model import events as ev
from controlplane.core.model.commands import Numbering
from controlplane.core.model.steps import Steps
from controlplane.daemon import pipeline
from controlplane.wire.codec import DecodedBatch

from .world import Result, plan_of, simulate

KINDS = ("daemon is killed", "NATS is restarted", "connection is cut", "messages are lost", "server is killed")


def run(seed: int) -> Result:
    return simulate(replace(plan_of(seed, kinds=KINDS), longest_gap_s=3.0))


def test_an_older_daemon_does_not_know_some_kinds_of_events() -> None:
    """It takes them for gaps in the numbers of whoever sent them."""
    decode, unknown = pipeline.decoding_events, (ev.CommandApplied, ev.FirstToken)

    def older(data: bytes) -> Steps[DecodedBatch]:
        batch = yield from decode(data)
        known = [event for event in batch.events if not isinstance(event, unknown)]
        odd = [f"event {event.sequence}: no kind" for event in batch.events if isinstance(event, unknown)]
        return replace(batch, events=known, rejected=[*batch.rejected, *odd])

    with patch.object(pipeline, "decoding_events", older):
        for seed in range(2):
            assert not run(seed).violations


def test_an_older_gate_does_not_know_some_kinds_of_commands() -> None:
    """Their numbers are skipped: the gate believes that it missed a word, and tells what it holds."""

    def two_further(self: Any) -> int:
        self.sent += 2
        return self.sent

    with patch.object(Numbering, "next", two_further):
        for seed in range(2):
            assert not run(seed).violations
