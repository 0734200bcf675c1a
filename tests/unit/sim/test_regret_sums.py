"""The regret ledger's sums over a simulated run are what the engines' own counters say; and it changes nothing."""

from typing import Any

import pytest
from experiments import experiment

from controlplane.core.commands import Command
from controlplane.core.events import Event
from controlplane.core.presets import PRESETS
from controlplane.core.regret import KINDS, Hindsight, RegretLedger, Verdict, total_of
from controlplane.lab.sim.laboratory import LABORATORY
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.summary import Summary
from controlplane.lab.workload.synthetic import synthesize
from controlplane.lab.workload.telemetry import Telemetry


def judged(preset: str, **changes: Any) -> tuple[Summary, RegretLedger, list[Verdict]]:
    """A run on a pool that is too small, as its ledger saw it."""
    verdicts: list[Verdict] = []
    book = RegretLedger(verdicts.append)
    asked = experiment(
        **{
            "preset": (PRESETS | LABORATORY)[preset],
            "trace": synthesize("swe-bench", programs=25, seed=1),
            "pool_tokens": 60_000,
            "profile": None,
            "arrival": Poisson(0.5),
            "cpus": 4,
        }
        | changes
    )
    summary = simulate(asked, recorder=book).summary
    return summary, book, verdicts


def pins_ended(summary: Summary) -> int:
    return round(summary.ttl_misses_per_min * summary.makespan_s / 60)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_its_sums_are_the_engines_counters(preset: str) -> None:
    summary, book, _ = judged(preset)
    assert summary.recomputed_tokens > 10_000
    assert book.sums.all.again_tokens == pytest.approx(summary.recomputed_tokens, rel=0.01)
    assert book.sums.pins_lost == pytest.approx(pins_ended(summary), rel=0.01)


@pytest.mark.parametrize(
    "changes",
    [
        {"pool_tokens": 30_000},
        {"replicas": 3, "pool_tokens": 20_000},
        {"shared_prefix": 2000},
        {"telemetry": Telemetry.NONE},
    ],
    ids=["retractions", "engines", "prefix", "silent"],
)
@pytest.mark.parametrize("preset", ["fcfs", "continuum", "mars"])
def test_they_are_so_wherever_it_runs(preset: str, changes: dict[str, Any]) -> None:
    summary, book, _ = judged(preset, **changes)
    assert book.sums.all.again_tokens == pytest.approx(summary.recomputed_tokens, rel=0.01)
    assert book.sums.pins_lost == pytest.approx(pins_ended(summary), rel=0.01)


def test_each_pin_that_was_lost_is_in_a_verdict() -> None:
    summary, book, verdicts = judged("infercept")
    lost = [verdict for verdict in verdicts if verdict.cause == "reclaimed"]
    assert len(lost) == book.sums.pins_lost == pins_ended(summary) > 10
    assert {verdict.kind for verdict in lost} == {"retain"}


def test_each_verdict_has_both_sides_and_only_small_rests_are_left_to_the_sums() -> None:
    _, book, verdicts = judged("mars")
    assert {verdict.kind for verdict in verdicts} <= set(KINDS)
    numbers = [(verdict.kind, verdict.number) for verdict in verdicts if verdict.number]
    assert len(numbers) == len(set(numbers)), "a decision is judged once"
    told, all_of_them = total_of(verdicts), book.sums.all
    assert told.again_tokens == pytest.approx(all_of_them.again_tokens, rel=0.01)
    assert all(verdict.cost_s >= 0 and verdict.gain_s >= 0 for verdict in verdicts)
    hit = [verdict for verdict in verdicts if (verdict.kind, verdict.outcome) == ("retain", "hit")]
    assert hit
    assert all(verdict.hit_tokens and verdict.held_token_s and verdict.gain_s for verdict in hit)


def test_hindsight_is_never_dearer_and_the_yardstick_is_nearer_to_it() -> None:
    ratios = {preset: judged(preset)[1].sums.all.regret_ratio for preset in ("fcfs", "continuum", "clairvoyant")}
    assert all(ratio >= 1.0 for ratio in ratios.values())


class LookingBack:
    """A recorder that knows nothing beforehand, and everything afterwards."""

    def __init__(self) -> None:
        self.hindsight = Hindsight()

    def event(self, event: Event, now_ns: int) -> None:
        self.hindsight.event(event, now_ns)

    def tick(self, now_ns: int) -> None: ...

    def command(self, command: Command, now_ns: int) -> None: ...


def test_the_clairvoyant_is_nearest_to_what_hindsight_would_have_computed() -> None:
    found = {}
    for preset in ("fcfs", "continuum", "penstock", "clairvoyant"):
        looking = LookingBack()
        asked = experiment(
            preset=(PRESETS | LABORATORY)[preset],
            trace=synthesize("swe-bench", programs=25, seed=1),
            pool_tokens=60_000,
            profile=None,
            arrival=Poisson(0.5),
            cpus=4,
        )
        summary = simulate(asked, recorder=looking).summary
        found[preset] = least = looking.hindsight.least()
        assert least.least_tokens <= least.again_tokens <= summary.recomputed_tokens
        assert least.again_tokens == pytest.approx(summary.recomputed_tokens, rel=0.02)  # retractions are not in it
    ratios = {preset: least.regret_ratio for preset, least in found.items()}
    assert min(ratios, key=ratios.__getitem__) == "clairvoyant"
    assert min(found, key=lambda preset: found[preset].least_tokens) == "clairvoyant"


def test_at_a_runs_end_what_is_open_is_unknown() -> None:
    _, book, verdicts = judged("continuum", telemetry=Telemetry.NONE)
    before = len(verdicts)
    book.close(1 << 62)
    late = verdicts[before:]
    assert {verdict.outcome for verdict in late} <= {"unknown", "replaced"}
    assert late
