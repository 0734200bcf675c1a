"""``make demo``, the first thing that a newcomer does, and the fleet's demo, at their smallest."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.terminals import Terminals, with_commands_of

from controlplane.core.model.errors import EngineUnavailable
from controlplane.lab.console import Console
from controlplane.lab.fleet.demo import FleetDemoOptions, run_fleet_demo
from controlplane.lab.fleet.site import SiteOptions

ROOT = Path(__file__).resolve().parents[2]
SMALLEST = "--rate 0.5 --time-scale 100"
BUSY = pytest.mark.timeout(1200)  # a busy machine takes many times the usual half a minute
_NUMBER_CUT = re.compile(r"\d…")


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    """In which everything temporary lies in the test's folder, and every variable is nonsense."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    opened = Terminals(tmp_path, with_commands_of(sys.executable, **hostile(tmp_path), TMPDIR=str(scratch)))
    try:
        yield opened
    finally:
        opened.close()


def hostile(folder: Path) -> dict[str, str]:
    """Each variable that the code knows, for a node that is not there."""
    sources = [path for room in ("controlplane", "engine_hooks") for path in (ROOT / room).rglob("*.py")]
    named = {name for path in sources for name in re.findall(r"PENSTOCK_[A-Z_]*[A-Z]", path.read_text())}
    assert len(named) > 20
    theirs = dict.fromkeys(named, "nonsense") | {"OPENAI_API_KEY": "nonsense", "NOTIFY_SOCKET": "/nowhere"}
    return theirs | {"PENSTOCK_STATE_DIR": str(folder / "theirs"), "PENSTOCK_NATS_URL": "nats://127.0.0.1:1"}


def left_behind(folder: Path) -> list[str]:
    """Processes that were told of a file below the folder."""
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(folder) in line]


@BUSY
def test_make_demo_ends_with_a_verdict_a_table_and_a_report(tmp_path: Path) -> None:
    arguments = f"-n 4 {SMALLEST} --telemetry half --all --out {tmp_path}"
    done = subprocess.run(
        ["make", "demo", f"DEMO_ARGS={arguments}"], cwd=ROOT, capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    said = done.stdout
    assert said.index("mean JCT vs fcfs, simulated") > said.index("At 0.5 programs/s a program takes")
    assert "telemetry half" in said
    assert "programs ended" in said, "every figure, as --all asks"
    assert not _NUMBER_CUT.search(said)
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "penstock,<br>simulated" in page
    assert "<dt>telemetry</dt><dd>half</dd>" in page


@BUSY
def test_an_interrupt_ends_the_demo_with_what_there_is(tmp_path: Path, terminals: Terminals) -> None:
    """And nothing of who runs it configures the demo, or is written to."""
    terminal = terminals.start(f"penstock demo -n 4 {SMALLEST} --out out")
    terminal.until_said("2/2 penstock")
    assert terminal.interrupt() == 130
    assert "Stopped" in terminal.said
    assert "mean JCT vs fcfs" in terminal.said
    assert "Traceback" not in terminal.said
    assert (tmp_path / "out" / "report.html").exists()
    assert left_behind(tmp_path / "scratch") == []
    assert not (tmp_path / "theirs").exists()


@BUSY
def test_the_fleets_demo_counts_what_a_key_kills(tmp_path: Path, terminals: Terminals) -> None:
    """And nothing of who runs it configures the fleet, or is written to."""
    terminal = terminals.start("penstock fleet demo --agents 2 --engines 1 --seconds 0")
    terminal.until_said("node-1 .*runs")
    terminal.type("d")
    terminal.until_said(r"engine killed, node-1: whole again after \d")
    terminal.type("q")
    assert terminal.wait() == 0, terminal.said[-2000:]
    assert re.search(r"1 fault in \d+ s: no program lost", terminal.said)
    assert re.search(r"1 engine killed +whole again after \d", terminal.said)
    assert left_behind(tmp_path / "scratch") == []
    assert list((tmp_path / "scratch").iterdir()) == []
    assert not (tmp_path / "theirs").exists()


def test_a_fleet_that_cannot_start_says_so_and_leaves_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    site = SiteOptions(preset="none-such", engines=1, daemons=1, envoys=1, nats_servers=1)
    with pytest.raises(EngineUnavailable, match=r"fleet-1 ends whenever it is started; it says: .*none-such"):
        run_fleet_demo(FleetDemoOptions(site=site), Console())
    folder = Path(capsys.readouterr().out.partition("Logs of each process: ")[2].strip())
    assert "none-such" in (folder / "fleet-1.log").read_text()
    assert list(tmp_path.iterdir()) == [folder]
