"""A sample of a grid: even, the same each time, a part of any larger one, and told."""

import itertools
from collections import Counter
from pathlib import Path

import pytest

from controlplane.lab.compare.rows import Grid
from controlplane.lab.experiment import Hardware, Workload
from controlplane.lab.sweep import estimate, results
from controlplane.lab.sweep.command import run_sweep
from controlplane.lab.sweep.run_cell import Outcome
from controlplane.lab.sweep.sample import draw
from controlplane.lab.sweep.spec import Place, SweepSpec, cells, load_sweep, places
from controlplane.lab.workload.telemetry import Telemetry

SPEC = SweepSpec(
    workload=tuple(Workload(trace="synthetic:swe-like", programs=2, name=name) for name in "abcd"),
    hardware=tuple(Hardware(pool_tokens=100_000, name=name) for name in "xyz"),
    presets=("fcfs", "mars"),
    arrivals=("poisson:1", "poisson:2"),
    telemetries=(Telemetry.NONE, Telemetry.FULL),
    seeds=(1, 2, 3),
)
SMALL = """
presets = ["fcfs", "mars"]
arrivals = ["poisson:0.5", "poisson:1"]
seeds = [1, 2, 3]
[[workload]]
trace = "synthetic:swe-like"
programs = 3
[[hardware]]
pool_tokens = 100000
"""


def counts(drawn: list[Place], *axes: int) -> set[int]:
    """How often there is each combination of the levels of these axes, of all that the grid has."""
    found = Counter(tuple(place.levels[axis] for axis in axes) for place in drawn)
    every = itertools.product(*(range(1 + max(place.levels[axis] for place in places(SPEC))) for axis in axes))
    return {found[levels] for levels in every}


@pytest.mark.parametrize("count", [1, 7, 12, 36, 100, 143])
def test_a_sample_is_even_over_each_axis(count: int) -> None:
    drawn = draw(places(SPEC), count, 1)
    assert len(set(drawn)) == len(drawn) == count
    for axis in range(5):
        assert max(counts(drawn, axis)) - min(counts(drawn, axis)) <= 1


def test_and_over_each_pair_of_axes_nearly_so() -> None:
    drawn = draw(places(SPEC), 36, 1)
    for pair in itertools.combinations(range(5), 2):
        assert max(counts(drawn, *pair)) - min(counts(drawn, *pair)) <= 2


def test_the_same_seed_draws_the_same_and_a_larger_sample_goes_on_from_a_smaller_one() -> None:
    whole = places(SPEC)
    assert draw(whole, 20, 1) == draw(whole, 50, 1)[:20]
    assert set(draw(whole, 20, 2)) != set(draw(whole, 20, 1))
    fewer = SweepSpec(
        workload=SPEC.workload,
        hardware=SPEC.hardware,
        presets=("mars",),
        arrivals=SPEC.arrivals,
        telemetries=SPEC.telemetries,
        seeds=SPEC.seeds,
    )
    assert draw(places(fewer), 20, 1) == draw(whole, 20, 1), "the presets are no part of the draw"


def test_every_cell_of_the_grid_may_be_drawn_and_none_is_likelier() -> None:
    whole = places(SPEC)
    found = Counter(place for seed in range(300) for place in draw(whole, 12, seed))
    assert set(found) == set(whole)
    assert max(found.values()) < 3 * 300 * 12 / len(whole)


def test_a_sample_larger_than_the_grid_is_the_grid() -> None:
    whole = places(SPEC)
    assert set(draw(whole, 1000, 1)) == set(whole)
    assert len(draw(whole, 1000, 1)) == len(whole) == 144


def test_loads_of_a_workload_that_has_its_own_are_the_same_levels() -> None:
    burst = Workload(trace="synthetic:swe-like", name="burst", arrivals=("burst:1:2", "burst:2:2"))
    spec = SweepSpec(workload=(SPEC.workload[0], burst), arrivals=SPEC.arrivals)
    assert {place.levels[3] for place in places(spec)} == {0, 1}


def test_every_preset_runs_in_each_drawn_cell() -> None:
    drawn = draw(places(SPEC), 9, 1)
    found = list(cells(SPEC, drawn))
    assert [cell.preset for cell in found] == ["fcfs", "mars"] * 9
    assert {cell.drawn_from for cell in found} == {144}
    whole = {results.key_of(cell): cell for cell in cells(SPEC)}
    assert {results.key_of(cell) for cell in found} <= set(whole), "a row of a sample is a row of the grid"
    assert {cell.drawn_from for cell in whole.values()} == {0}


def test_the_command_runs_the_same_sample_again_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    file, out = tmp_path / "sweep.toml", tmp_path / "out.csv"
    file.write_text(SMALL)
    assert run_sweep(file, out=out, jobs=1, sample=2) == 0
    first = capsys.readouterr()
    assert "a sample: 2 of the grid's 6 cells" in first.err
    assert "4 runs, 0 of them in" in first.err
    assert "less than a minute of one core for the 4 that are missing" in first.err
    assert "Note: A sample: 2 of the grid's 6 cells" in first.out
    assert Grid(results.read(out)).sample == (2, 6)
    assert run_sweep(file, out=out, sample=2, dry=True) == 0
    assert "4 runs, 4 of them in" in capsys.readouterr().err
    assert run_sweep(file, out=out, sample=4, dry=True) == 0
    assert "8 runs, 4 of them in" in capsys.readouterr().err
    assert run_sweep(file, out=out, dry=True) == 0
    assert "12 runs, 4 of them in" in capsys.readouterr().err


def test_the_estimate_goes_by_the_pace_of_the_rows_that_are_there(tmp_path: Path) -> None:
    file, out = tmp_path / "sweep.toml", tmp_path / "out.csv"
    file.write_text(SMALL)
    spec = load_sweep(file)
    wanted = list(cells(spec))
    usual = estimate.cpu_s(spec, wanted, [])
    assert estimate.cpu_s(spec, wanted[:6], []) == pytest.approx(usual / 2)
    figures = dict.fromkeys(results.FIGURES, 1.0)
    slow = Outcome(figures=figures | {"turns_ended": estimate.USUAL_TURNS_PER_CPU_MIN, "cpu_s": 600.0})
    results.append(out, wanted[0], slow)
    results.append(out, wanted[1], Outcome(error="stuck"))
    assert estimate.cpu_s(spec, wanted, results.read(out)) == pytest.approx(10 * usual)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(5, "less than a minute"), (1500, "about 25 min"), (7100, "about 118 min"), (32_400, "about 9.0 hours")],
)
def test_a_time_is_told_to_what_is_worth_knowing(seconds: float, said: str) -> None:
    assert estimate.in_words(seconds) == said
