"""The whole loop: nats-server, daemon, engine double and load generator."""

from pathlib import Path

from support.whole_loop import Loop, serving

from controlplane.lab.workload.synthetic import synthesize


def test_programs_are_held_granted_and_counted(tmp_path: Path) -> None:
    """What the machine delays counts ten times, not thirty: a decision that comes late finds nothing to keep."""
    for loop in serving(Loop(tmp_path, "penstock", time_scale=10.0)):
        result = loop.run(25)
    summary = result.summary
    assert (summary.programs_ended, summary.programs_failed) == (25, 0)
    assert summary.turns_ended == sum(len(p.turns) for p in synthesize("swe-bench", programs=25, seed=1).programs)
    assert summary.longest_hold_s > 1, "nobody was held: the load did not saturate"
    assert max(result.series.queue) > 0
    assert max(result.series.limit) > min(limit for limit in result.series.limit if limit)
    assert summary.cache_hit_ratio > 0.5
