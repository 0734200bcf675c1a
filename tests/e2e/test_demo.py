"""``make demo``, the first thing that a newcomer does, with fewer programs."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(1200)  # a busy machine takes many times the usual half a minute
def test_the_demo_ends_with_a_table_and_two_reports(tmp_path: Path) -> None:
    arguments = f"-n 4 --time-scale 100 --telemetry half --out {tmp_path}"
    done = subprocess.run(
        ["make", "demo", f"DEMO_ARGS={arguments}"], cwd=ROOT, capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "programs ended" in done.stdout
    assert "telemetry half" in done.stdout
    for report in ("report.html", "simulated.html"):
        page = (tmp_path / report).read_text()
        assert "<svg" in page
        assert "penstock" in page
        assert "<dt>telemetry</dt><dd>half</dd>" in page
