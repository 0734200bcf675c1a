"""The regret ledger's sums over a simulated run are what the engines' own counters say."""

from typing import Any

import pytest
from experiments import experiment

from controlplane.core.policies.presets import PRESETS
from controlplane.core.regret import RegretLedger, Verdict, total_of
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.synthetic import synthesize
from controlplane.lab.workload.telemetry import Telemetry


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("infercept", {}),
        ("continuum", {"telemetry": Telemetry.NONE}),
        ("mars", {"pool_tokens": 30_000}),
        ("fcfs", {"replicas": 3, "pool_tokens": 20_000}),
        ("penstock", {"shared_prefix": 2000}),
    ],
    ids=["pins", "silent", "retractions", "engines", "prefix"],
)
def test_its_sums_are_the_engines_counters(preset: str, changes: dict[str, Any]) -> None:
    verdicts: list[Verdict] = []
    book = RegretLedger(verdicts.append)
    too_small: dict[str, Any] = {"pool_tokens": 60_000, "profile": None, "cpus": 4} | changes
    trace = synthesize("swe-bench", programs=25, seed=1)
    summary = simulate(experiment(preset=PRESETS[preset], trace=trace, **too_small), recorder=book).summary
    pins_ended = round(summary.ttl_misses_per_min * summary.makespan_s / 60)
    assert summary.recomputed_tokens > 1000
    assert book.sums.all.again_tokens == pytest.approx(summary.recomputed_tokens, rel=0.01)
    assert book.sums.pins_lost == pytest.approx(pins_ended, rel=0.01)
    lost = [verdict for verdict in verdicts if verdict.cause == "reclaimed"]
    assert len(lost) == book.sums.pins_lost
    assert preset != "infercept" or len(lost) > 10
    assert {verdict.kind for verdict in lost} <= {"retain"}
    numbers = [(verdict.kind, verdict.number) for verdict in verdicts if verdict.number]
    assert len(numbers) == len(set(numbers)), "a decision is judged once"
    assert total_of(verdicts).again_tokens == pytest.approx(book.sums.all.again_tokens, rel=0.02)
    before = len(verdicts)
    book.close(1 << 62)
    assert {verdict.outcome for verdict in verdicts[before:]} <= {"unknown", "replaced"}, (
        "of what is open at the end"
    )
