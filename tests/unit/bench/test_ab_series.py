"""A series of runs goes on where it was stopped, and keeps what was finished."""

from pathlib import Path

import pytest
from ab import results, series
from ab.kinds import KINDS, SGLANG
from ab.plan import Job
from ab.scenario import Scenario
from ab.systems import code_digest, effective_digest, parse_system
from ab_rows import row

SYSTEMS = [parse_system(name, KINDS[SGLANG]) for name in ("stock", "static-4", "mars")]


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
        cell = job.cell
        today = {"effective": effective_digest(job.system), "code": code_digest(job.system)}
        made = row(job.system.name, rate=cell.rate, seed=cell.seed, scenario=cell.scenario, toml=job.system.toml)
        return results.Row(**{name: getattr(made, name) for name in made.__struct_fields__} | today)


def go(path: Path, play: PlayDouble, monkeypatch: pytest.MonkeyPatch, redo: str = "") -> int:
    monkeypatch.setattr(series, "play", play)
    return series.run(
        results.RUN,
        Scenario(),
        rates=(0.15,),
        seeds=(1, 2),
        systems={0.15: SYSTEMS},
        environment=path.parent,
        path=path,
        keep=None,
        redo=frozenset({redo} - {""}),
    )


@pytest.mark.parametrize("while_playing", [False, True])
def test_an_interrupted_series_goes_on_with_the_run_that_was_lost(
    while_playing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.jsonl"
    first = PlayDouble(stop_at=4, while_playing=while_playing)
    assert go(path, first, monkeypatch) == series.INTERRUPTED
    assert len(results.read(path)) == 4
    then = PlayDouble()
    assert go(path, then, monkeypatch) == 0
    assert sorted(first.played + then.played) == sorted([system.name for system in SYSTEMS] * 2)
    none = PlayDouble()
    assert go(path, none, monkeypatch) == 0
    assert none.played == []


def test_old_results_are_kept_and_told_and_redone_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    go(path, PlayDouble(), monkeypatch)
    monkeypatch.setattr("ab.plan.code_digest", lambda system: "newer" if system.has_plugin else "")
    capsys.readouterr()
    kept = PlayDouble()
    go(path, kept, monkeypatch)
    assert kept.played == []
    assert capsys.readouterr().out.count("kept, though its code or defaults have changed") == 4
    anew = PlayDouble()
    go(path, anew, monkeypatch, redo="mars")
    assert anew.played == ["mars", "mars"]


def test_progress_says_which_run_how_many_and_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    go(tmp_path / "results.jsonl", PlayDouble(), monkeypatch)
    said = capsys.readouterr().out
    assert "1/6 stock at 0.15/s, seed 1; all done in 1.0 h" in said
    assert "6/6 stock at 0.15/s, seed 2; all done in" in said
    assert "mean JCT 25.0 s" in said
