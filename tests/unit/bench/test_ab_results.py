"""The A/B's results file: what is finished is kept, whatever happened to the line after it."""

from pathlib import Path

import pytest
from ab import results
from ab_rows import cell, row


def test_rows_come_back_as_they_were_and_a_later_one_replaces_an_earlier(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.jsonl"
    assert results.read(path) == []
    first, other, again = row(), row("mars", seed=2), row(jct_s=(1.0, None), revision="def")
    for made in (first, other, again):
        results.append(path, made)
    assert results.read(path) == [other, again]
    assert path.read_bytes().count(b"\n") == 3


def test_a_line_that_broke_off_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    results.append(path, row())
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    assert [found.cell for found in results.read(path)] == [cell()]
    results.append(path, row("mars"))
    assert [found.cell.system for found in results.read(path)] == ["stock", "mars"]
    assert path.read_bytes().startswith(whole)


def test_a_file_of_something_else_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    results.append(path, row())
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(SystemExit, match=r"results\.jsonl:1: not a result"):
        results.read(path)
