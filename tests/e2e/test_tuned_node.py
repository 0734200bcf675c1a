"""``docs/tutorial/a-tuned-node.md`` as a stranger follows it: he sees what it says that he will see."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.documents import ROOT
from support.tutorial import PATIENCE_S, Reader

PAGE = ROOT / "docs" / "tutorial" / "a-tuned-node.md"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(PAGE, tmp_path)
    yield made
    made.terminals.close()


def until(reader: Reader, pattern: str) -> str:
    """Ask for the status again, as a reader does, until it says so."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not re.search(pattern, said := reader.type("penstock status --node tutorial")):
        assert time.monotonic() < deadline_s, said
    return said


@pytest.mark.timeout(1200)
def test_an_overloaded_pool_is_seen_and_metered_and_a_mistake_changes_nothing(reader: Reader) -> None:
    next(reader.lines)  # make install
    for begins in ("printf", "penstock config check", "penstock up", "penstock engine-double"):
        reader.next(begins)
    reader.next("penstock doctor")

    reader.next("penstock replay")
    reader.next("penstock status")
    until(reader, r", 0 waiting(.|\n)*overloaded")
    assert "replay" in reader.next("penstock programs")

    reader.next("sed")
    assert "window" in reader.next("penstock status")
    assert not re.search(r"window\s+no limit", until(reader, r"preset penstock(.|\n)* [1-9]\d* waiting"))
    reader.next("printf")
    assert "refused, as it should be" in reader.next("penstock reload")
    reader.next("sed")

    assert "replay" in reader.next("penstock queue")
    assert re.search(r"admit|hold|pause", reader.next("penstock explain"))
    reader.end()
