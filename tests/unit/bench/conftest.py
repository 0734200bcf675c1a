"""The benchmarks are scripts beside each other: their folder has to be on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
