"""``docs/tutorial/from-an-alert-to-a-better-setting.md`` as a stranger follows it, and what it says is so.

The real daemon with its nats-server, the engine double under load, the real Prometheus with the exported rules.
Every wait is for a state, which a busy machine reaches late.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.documents import ROOT
from support.programs import needs
from support.tutorial import Reader

pytestmark = needs("prometheus", "promtool")
PAGE = ROOT / "docs" / "tutorial" / "from-an-alert-to-a-better-setting.md"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(PAGE, tmp_path)
    yield made
    made.terminals.close()


def waited_s(said: str) -> float:
    """Of ``promtool query``: the one value."""
    found = re.search(r"=> (\S+) @", said)
    assert found is not None, said
    return float(found.group(1))


@pytest.mark.timeout(1200)
def test_an_alert_leads_to_a_program_a_verdict_a_what_if_and_a_change_that_helps(reader: Reader) -> None:
    config = reader.folder / "penstock.toml"
    first, shadow = reader.files["toml"]
    config.write_text(first)
    (reader.folder / "prometheus.yml").write_text(reader.files["yaml"][0])
    begun = ("penstock up", "penstock engine-double", "penstock replay", "penstock deploy", "sed", "prometheus")
    for begins in begun:
        reader.next(begins)

    assert "PenstockProgramsWaitLong" in reader.next("until promtool")
    before_s = waited_s(reader.next("promtool"))
    assert before_s > 60

    status = reader.next("penstock status")
    assert re.search(r"window\s+2\b.*fixed at 2", status), status
    assert "all slots are taken" in reader.next("penstock queue")

    assert re.search(r"^hold\s", reader.next("penstock regret"), re.M)
    worst = program_of(reader.next("penstock regret"))
    explained = reader.next("penstock explain", PROGRAM=worst)
    assert "admission fixed" in explained
    # Where the machine stalled and a gate opened, what kept it out since then is a pause.
    assert re.search(r"verdict( on the hold)?: (about )?-\d", explained), explained

    told = reader.next("penstock what-if")
    assert "Recorded: fcfs; what if: penstock" in told
    assert re.search(r"JCT mean \(s\)([^│]*│){3} *-\d", told), told  # of the mean change

    with config.open("a") as file:
        file.write(shadow)
    assert re.search(r"mean JCT -\d", reader.next("until penstock status"))
    assert "let in earlier" in reader.next("penstock status")

    promoted = reader.next("penstock promote")
    assert "penstock is in force" in promoted
    assert re.search(r"preset\s+\"penstock\"", promoted), promoted
    assert waited_s(reader.next("until promtool")) < before_s / 2
    reader.next("while promtool")
    assert "preset penstock" in reader.next("penstock status")
    reader.end()


def program_of(table: str) -> str:
    """The name in the first row."""
    rows = [line.split() for line in table.splitlines() if line.strip()]
    return rows[1][0]
