"""Every preset does what it says that it does: each mechanism is seen at work, and no other one."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.policies.mechanisms import MECHANISMS, Mechanism
from controlplane.core.policies.presets import PRESETS
from controlplane.core.policies.protocols import Fit, QueuedCall, QueuedProgram, ResidentView
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Poisson

HOSTS = ((), ("dram:400000:50",))
BY_COMMAND = {
    cmd.Retain: Mechanism.PIN,
    cmd.Demote: Mechanism.SWAP,
    cmd.Discard: Mechanism.DISCARD,
    cmd.Label: Mechanism.LABEL,
}


class Spied:
    """A policy of a preset, with one method looked at."""

    def __init__(self, policy: Any, method: str, look: Callable[..., None]) -> None:
        self._policy, self._method, self._look = policy, method, look

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._policy, name)
        if name != self._method:
            return found

        def looked_at(*arguments: Any) -> Any:
            arguments = tuple(list(each) if isinstance(each, Iterable) else each for each in arguments)
            result = found(*arguments)
            self._look(*arguments, result)
            return result

        return looked_at


class Seen:
    """Recorder of a run, and what policies are looked at with."""

    def __init__(self) -> None:
        self.counts: Counter[Mechanism] = Counter()
        self._limits: set[int] = set()
        self._paused: set[str] = set()

    def event(self, event: ev.Event, now_ns: int) -> None: ...
    def tick(self, now_ns: int) -> None: ...

    def command(self, command: cmd.Command, now_ns: int) -> None:
        if (mechanism := BY_COMMAND.get(type(command))) is not None:
            self.counts[mechanism] += 1
        match command:
            case cmd.Pause():
                self._paused.add(command.program_id)
            case cmd.Admit():
                self.counts[Mechanism.PAUSE] += command.program_id in self._paused
                self._paused.discard(command.program_id)
            case cmd.SetWindow():
                self._limits.add(command.limit)
                self.counts[Mechanism.LIMIT] = len(self._limits) - 1

    def packs(self, queue: Sequence[QueuedProgram], *others: Any) -> None:
        by_arrival = sorted(queue, key=lambda each: each.arrived_at_ns)
        self.counts[Mechanism.PACK] += [*others[-1]] != by_arrival

    def orders(self, calls: Sequence[QueuedCall], *others: Any) -> None:
        by_arrival = sorted(calls, key=lambda each: (not each.retracted, each.queued_at_ns, each.turn_id))
        self.counts[Mechanism.ORDER] += [*others[-1]] != by_arrival

    def fits(
        self,
        chunk_blocks: int,
        shortfall_blocks: int,
        least_blocks: int,
        candidates: Sequence[ResidentView],
        now_ns: int,
        fit: Fit,
    ) -> None:
        by_use = [each.program_id for each in candidates][: len(fit.victims)]
        self.counts[Mechanism.EVICT] += [name for name, _ in fit.victims] != by_use
        self.counts[Mechanism.SHRINK] += 0 < fit.chunk_blocks < chunk_blocks


def seen_of(name: str, tiers: tuple[str, ...]) -> Counter[Mechanism]:
    """How often each was seen in a run in which sixty programs want the room of five."""
    seen, preset = Seen(), PRESETS[name]
    asked = Experiment(
        workload=Workload(trace="synthetic:swe-bench", programs=60),
        hardware=Hardware(pool_tokens=50_000, tiers=tiers),
        arrival=Poisson(2.0),
        preset=replace(
            preset,
            packing=Spied(preset.packing, "order", seen.packs),  # type: ignore[arg-type]
            priority=Spied(preset.priority, "order", seen.orders),  # type: ignore[arg-type]
            memory=Spied(preset.memory, "fit", seen.fits),  # type: ignore[arg-type]
        ),
    )
    summary = simulate(asked, recorder=seen).summary
    seen.counts[Mechanism.HOLD] = round(summary.longest_hold_s or 0)
    return seen.counts


@pytest.mark.parametrize("name", PRESETS)
def test_each_mechanism_of_a_preset_is_seen_at_work_and_no_other_one(name: str) -> None:
    alone, hosted = (seen_of(name, tiers) for tiers in HOSTS)
    declared, below = set(MECHANISMS[name]), {Mechanism.PIN, Mechanism.SWAP}
    assert set(+alone) == declared - {Mechanism.SWAP}
    assert declared & below <= set(+hosted) <= declared
