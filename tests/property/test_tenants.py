"""Whatever the weights, the preset's order and the flood: nobody starves, and who waits is served by weight."""

from collections import Counter
from dataclasses import replace
from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st
from support.core_driver import Driver

from controlplane.core.model import events as ev
from controlplane.core.model.tenancy import Tenancy, Tenant
from controlplane.core.policies.admission.fixed import Fixed
from controlplane.core.policies.presets import PRESETS
from controlplane.core.scheduling.rules_and_state import ControlRules

WEIGHTS = st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=2, max_size=4)
_BACKLOG = 3  # programs of each tenant that wait all the time


class Flood:
    """Every tenant always has programs that wait; each that is let in runs one turn and ends."""

    def __init__(self, preset: str, weights: list[float], window: int) -> None:
        self.weights = {f"t{number}": weight for number, weight in enumerate(weights)}
        tenancy = Tenancy(named={name: Tenant(weight=weight) for name, weight in self.weights.items()})
        chosen = replace(PRESETS[preset], admission=Fixed(window=window), retention=PRESETS["fcfs"].retention)
        self.driver = Driver(chosen, ControlRules(tenancy=tenancy, stall_s=86_400))
        self.driver.pool(total=100_000, free=100_000)
        self.made: Counter[str] = Counter()
        self.waits: dict[str, int] = {}  # by program: admissions since it asked
        self.longest: Counter[str] = Counter()
        self.served: Counter[str] = Counter()

    def round(self) -> None:
        d = self.driver
        for tenant in self.weights:
            waiting = sum(name.startswith(f"{tenant}-") for name in self.waits)
            for _ in range(_BACKLOG - waiting):
                self.made[tenant] += 1
                self.ask(f"{tenant}-{self.made[tenant]}", tenant)
        let_in = d.admitted(0.5)
        for name in let_in:
            d.submit(name, blocks=100)
        d.wait(5)
        for name in let_in:
            d.finish(name, prompt=100)
            d.end(name)
            tenant = name.partition("-")[0]
            self.served[tenant] += 1
            self.longest[tenant] = max(self.longest[tenant], self.waits.pop(name))
            for other in self.waits:
                self.waits[other] += 1

    def ask(self, name: str, tenant: str) -> None:
        self.waits[name] = 0
        d = self.driver
        d.send(d.gate(ev.TurnQueued, program_id=name, turn_id=f"{name}.1", prompt_tokens=100, account=tenant))


@settings(max_examples=settings().max_examples // 4, deadline=None)
@given(preset=st.sampled_from(sorted(PRESETS)), weights=WEIGHTS, window=st.integers(1, 4))
def test_nobody_starves_and_who_waits_is_served_by_weight(preset: str, weights: list[float], window: int) -> None:
    flood = Flood(preset, weights, window)
    for _ in range(ceil(80 / window)):
        flood.round()
    total, served = sum(weights), sum(flood.served.values())
    for tenant, weight in flood.weights.items():
        fair = served * weight / total
        assert abs(flood.served[tenant] - fair) <= 2 * len(weights) + window
        # Its own that wait with it, and for each the others' turns.
        longest = max([flood.longest[tenant], *(n for name, n in flood.waits.items() if name.startswith(tenant))])
        assert longest <= (_BACKLOG + 1) * ceil(total / weight) + 2 * len(weights) + 2 * window
