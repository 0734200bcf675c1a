"""The committed protobuf code is what ``make proto`` makes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GENERATED = ROOT / "controlplane" / "wire" / "_generated"


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "generate_proto.py"
    subprocess.run([sys.executable, str(script), "--output", str(tmp_path)], check=True, stdout=subprocess.DEVNULL)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_text() for path in GENERATED.glob("*.py*") if path.is_file()}
    assert made == committed, "run `make proto`"
