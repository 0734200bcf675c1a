"""A shadow changes nothing of what is decided, whatever becomes of it; one like the live one decides alike."""

from collections.abc import Callable
from itertools import groupby

import pytest
from test_parity import Decision, Memory, simulated

from controlplane.config import Config
from controlplane.core.model.commands import Command
from controlplane.core.model.events import Event
from controlplane.core.policies.presets import PRESETS
from controlplane.core.scheduling.controller import Controller
from controlplane.daemon.pipeline import DecisionPipeline
from controlplane.daemon.shadow.shadow import Shadow, ShadowStatus
from controlplane.wire.codec import encode_events

Make = Callable[..., Controller]
LIVE = ("penstock", "mars", "continuum", "mori")


class FailingDouble(Controller):
    """Fails after it has decided a while."""

    ticks = 0

    def tick(self, now_ns: int) -> list[Command]:
        self.ticks += 1
        if self.ticks > 20:
            raise RuntimeError("what a policy of somebody's own may do")
        return super().tick(now_ns)


@pytest.fixture(scope="module")
def runs() -> dict[str, Memory]:
    found = {}
    for preset in LIVE:
        found[preset] = Memory()
        simulated(preset, 1, found[preset])
    return found


def decided(
    memory: Memory, live: str, shadow: str = "", make: Make = Controller
) -> tuple[list[Decision], ShadowStatus | None]:
    """What the live one decides in virtual time on the run's events, and how its shadow stands then."""
    pipeline = DecisionPipeline(Controller(PRESETS[live]))
    observer = Shadow(lambda: pipeline.controller, make, thread=lambda: 0, process=lambda: 0)
    if shadow:
        pipeline.observer = observer
        observer.configure(Config(preset=shadow, policies=PRESETS[shadow]))
    end_ns, found = memory.ticks[-1], []

    def decide(now_ns: int) -> None:
        found.extend((now_ns, command) for command in pipeline.decide(now_ns))
        pipeline.record()

    def take(event: Event, now_ns: int) -> None:
        pipeline.feed(encode_events(event.publisher, event.sequence, [(event.at_ns, event)]), now_ns)

    for now_ns, batch in groupby(memory.events, key=lambda pair: pair[0]):
        if now_ns > end_ns:
            break
        while pipeline.controller.next_deadline_ns() < now_ns:
            decide(pipeline.controller.next_deadline_ns())
        for _, event in batch:
            take(event, now_ns)
        decide(now_ns)
    return found, observer.status(end_ns)


@pytest.mark.parametrize("live", LIVE)
def test_the_live_one_decides_alike_with_a_shadow_and_without(runs: dict[str, Memory], live: str) -> None:
    alone, _ = decided(runs[live], live)
    assert alone == runs[live].decisions[: len(alone)]
    assert len(alone) > 25
    for shadow in ("fcfs", "mars", "thunderagent", "penstock"):
        observer, status = decided(runs[live], live, shadow)
        assert observer == alone
        assert status is not None
        assert status.standing == "decides", status.reason


@pytest.mark.parametrize("live", LIVE)
def test_it_does_so_too_when_the_shadow_fails(runs: dict[str, Memory], live: str) -> None:
    alone, _ = decided(runs[live], live)
    observer, status = decided(runs[live], live, "mars", FailingDouble)
    assert observer == alone
    assert status is not None
    assert status.standing == "failed"
    assert "what a policy of somebody's own may do (tick, line" in status.reason


@pytest.mark.parametrize("live", LIVE)
def test_a_shadow_like_the_live_one_never_differs(runs: dict[str, Memory], live: str) -> None:
    _, status = decided(runs[live], live, live)
    assert status is not None
    assert status.latest == ()
    assert status.counts.same > 25
    assert status.ahead == 0


def test_another_one_differs_as_it_would(runs: dict[str, Memory]) -> None:
    _, status = decided(runs["mars"], "mars", "fcfs")
    assert status is not None
    assert status.counts.earlier > 0, "who has no window lets everybody in at once"
    assert status.counts.later == 0
    assert status.lead_s > 0
    assert status.counts.not_retained > 0
    _, status = decided(runs["continuum"], "continuum", "mars")
    assert status is not None
    assert status.counts.later > 0, "who has a window would have held somebody"
