"""The committed protobuf code is what ``make proto`` makes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("controlplane/wire/_generated", "controlplane/fleet/_generated")


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "generate_proto.py"
    subprocess.run([sys.executable, str(script), "--output", str(tmp_path)], check=True, stdout=subprocess.DEVNULL)
    for folder in FOLDERS:
        made = {path.name: path.read_text() for path in (tmp_path / folder).iterdir()}
        committed = {path.name: path.read_text() for path in (ROOT / folder).glob("*.py*") if path.is_file()}
        assert made == committed, "run `make proto`"
