"""The A/B's results file: what is finished is kept, whatever happened to the line after it."""

from pathlib import Path

import pytest
from ab import RESULTS, results
from ab_rows import cell, row

from controlplane.lab.workload.telemetry import Telemetry


def test_rows_come_back_as_they_were_and_a_later_one_replaces_an_earlier(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.jsonl"
    assert results.read(path) == []
    first, other, again = row(), row("mars", seed=2), row(jct_s=(1.0, None), revision="def")
    for made in (first, other, again):
        results.append(path, made)
    assert results.read(path) == [other, again]
    assert path.read_bytes().count(b"\n") == 3


def test_the_rows_of_before_still_load_and_are_of_full_telemetry() -> None:
    rows = [found for found in results.read(RESULTS) if found.cell.scenario == "24b97cd251"]
    assert len(rows) > 10
    assert {found.telemetry for found in rows} == {Telemetry.FULL}
    assert {(found.engine_cpu_turn_s, found.figures.tpot_mean_s, found.gpu) for found in rows} == {(0.0, 0.0, "")}


def test_a_line_that_broke_off_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    results.append(path, row())
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    assert [found.cell for found in results.read(path)] == [cell()]
    results.append(path, row("mars"))
    assert [found.cell.system for found in results.read(path)] == ["stock", "mars"]
    assert path.read_bytes().startswith(whole)
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(SystemExit, match=r"results\.jsonl:1: not a result"):
        results.read(path)


def test_a_run_whose_machine_was_slower_than_for_the_others_is_told() -> None:
    """Of the same rate and seed: those are compared with each other."""
    usual, slow = row("stock", transform_ms=(2.2, 2.0)), row("mars", transform_ms=(2.3, 4.6))
    alone = row("mars", rate=0.2, transform_ms=(4.6, 4.7))
    unknown = row("continuum")
    assert results.of_a_slow_machine([usual, slow, alone, unknown]) == {slow.cell}


def test_what_is_usual_is_the_fastest_that_this_model_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "model_name", lambda: "EPYC")
    rows = [row("stock", cpu="EPYC", transform_ms=(2.2, 2.1)), row("mars", cpu="EPYC", transform_ms=(2.0, 2.4))]
    assert results.usual_ms([*rows, row("static-4", cpu="Xeon", transform_ms=(1.0, 1.0)), row("static-6")]) == 2.2
    assert results.usual_ms([]) == 0.0
