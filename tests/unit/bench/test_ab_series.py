"""A series of runs: their order, and that it goes on where it was stopped and keeps what was finished."""

import sys
from pathlib import Path

import pytest
from ab import results, series
from ab.kinds import KINDS, SGLANG
from ab.one_run import Job
from ab.scenario import Scenario
from ab.systems import code_digest, effective_digest, parse_system
from ab_rows import SCENARIO, row

SYSTEMS = [parse_system(name, KINDS[SGLANG]) for name in ("stock", "static-4", "mars")]
DIGEST = Scenario().digest


class PlayDouble:
    """Runs nothing; the run of this number is interrupted, by Ctrl-C before or while it plays."""

    def __init__(self, stop_at: int = -1, while_playing: bool = False) -> None:
        self.played: list[str] = []
        self._stop_at = stop_at
        self._while_playing = while_playing

    def __call__(
        self, job: Job, scenario: Scenario, environment: Path, keep: Path | None, usual_ms: float = 0.0
    ) -> results.Row | None:
        if len(self.played) == self._stop_at:
            if self._while_playing:
                return None
            raise KeyboardInterrupt
        self.played.append(job.system.name)
        cell, system = job.cell, job.system
        today = {"effective": effective_digest(system), "code": code_digest(system), "toml": system.toml}
        return row(system.name, rate=cell.rate, seed=cell.seed, scenario=cell.scenario, **today)


def go(path: Path, play: PlayDouble, monkeypatch: pytest.MonkeyPatch, redo: str = "") -> int:
    monkeypatch.setattr(series, "play", play)
    planned = series.jobs(DIGEST, (0.15,), (1, 2), SYSTEMS)
    left = series.pending(planned, results.read(path), frozenset({redo} - {""}))
    return series.run(Scenario(), planned, left, path.parent, path, None)


def test_whenever_it_stops_every_system_has_run_as_often_give_or_take_one() -> None:
    jobs = series.jobs(SCENARIO, (0.13, 0.2), (1, 2), SYSTEMS)
    assert len({job.cell for job in jobs}) == len(jobs) == 12
    for stop in range(len(jobs)):
        counts = [sum(job.system == system for job in jobs[:stop]) for system in SYSTEMS]
        assert max(counts) - min(counts) <= 1
    assert all(len({(job.cell.rate, job.cell.seed) for job in jobs[n : n + 3]}) == 1 for n in range(0, 12, 3))
    assert len({job.system.name for job in jobs[::3]}) == 3, "each begins some of them"


@pytest.mark.parametrize("while_playing", [False, True])
def test_an_interrupted_series_goes_on_with_the_run_that_was_lost(
    while_playing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.jsonl"
    first, then, none = PlayDouble(stop_at=4, while_playing=while_playing), PlayDouble(), PlayDouble()
    assert go(path, first, monkeypatch) == series.INTERRUPTED
    assert len(results.read(path)) == 4
    assert go(path, then, monkeypatch) == 0
    assert sorted(first.played + then.played) == sorted([system.name for system in SYSTEMS] * 2)
    assert go(path, none, monkeypatch) == 0
    assert none.played == []


def test_results_of_older_code_are_kept_and_named_and_redone_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    go(path, PlayDouble(), monkeypatch)
    monkeypatch.setattr(series, "code_digest", lambda system: "newer" if system.has_plugin else "")
    capsys.readouterr()
    kept, anew = PlayDouble(), PlayDouble()
    go(path, kept, monkeypatch)
    assert kept.played == []
    assert capsys.readouterr().out.count("kept, though its code or defaults have changed") == 4
    go(path, anew, monkeypatch, redo="mars")
    assert anew.played == ["mars", "mars"]


def test_a_result_of_another_configuration_is_none_and_one_of_a_slow_machine_may_be() -> None:
    (job,) = series.jobs(SCENARIO, (0.15,), (1,), SYSTEMS[2:])
    other = row("mars", toml='preset = "mars"\n[admission]\nbeta = 0.5\n')
    assert series.pending([job], [other], frozenset()) == [job]
    slow = row("mars", toml=job.system.toml, transform_ms=(2.3, 4.6))
    rows = [row("stock", transform_ms=(2.2, 2.0)), slow]
    assert series.pending([job], rows, frozenset()) == []
    assert series.pending([job], rows, frozenset(), redo_slow=True) == [job]


def test_those_of_one_rate_and_seed_run_together_and_cpus_go_round() -> None:
    jobs = series.jobs(SCENARIO, (0.1, 0.2), (1,), SYSTEMS, turning=False)
    ran = [[(job.system.name, job.cell.rate, cpu) for job, cpu in together] for together in series.groups(jobs, 2)]
    assert ran == [
        [("stock", 0.1, 0), ("static-4", 0.1, 1)],
        [("stock", 0.2, 1), ("static-4", 0.2, 0)],
        [("mars", 0.1, 0), ("mars", 0.2, 1)],  # no CPU is left over while there is work
    ]


def test_a_run_that_fails_ends_those_at_once_with_its_status() -> None:
    jobs, started = series.jobs(SCENARIO, (0.1, 0.2), (1,), SYSTEMS, turning=False), []

    def command(job: Job, cpu: int) -> list[str]:
        started.append(job.system.name)
        return [sys.executable, "-c", f"raise SystemExit({7 if job.system.name == 'static-4' else 0})"]

    assert series.run_at_once(jobs, 2, command) == 7
    assert len(started) == 2, "the group after it has not begun"
