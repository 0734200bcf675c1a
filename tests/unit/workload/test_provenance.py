"""Which code made a result."""

import re
from pathlib import Path

import pytest

from controlplane.lab.workload import provenance
from controlplane.lab.workload.provenance import code_digest, revision


def test_a_digest_is_of_what_the_python_files_say(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.py").write_text("x = 1")
    first = code_digest([tmp_path])
    (tmp_path / "notes.md").write_text("more")
    assert code_digest([tmp_path]) == first
    (tmp_path / "inner" / "a.py").write_text("x = 2")
    assert code_digest([tmp_path]) != first


def test_without_a_checkout_it_is_the_installed_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert re.fullmatch(r"\d+\.\d+\.\d+", revision())


def test_what_is_not_there_has_no_digest(tmp_path: Path) -> None:
    """A room that moved would else be left out without a word."""
    with pytest.raises(FileNotFoundError):
        code_digest([tmp_path / "moved"])
