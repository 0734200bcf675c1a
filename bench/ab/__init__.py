"""A stock engine against the same engine with Penstock: the parts of ``bench/ab_engine.py``.

Importing it makes the engine tests' helpers importable.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "ab.jsonl"

for _folder in (ROOT / "tests", ROOT / "tests" / "engine"):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))
