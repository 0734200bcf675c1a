"""A stock engine against the same engine with Penstock: the parts of ``bench/ab_engine.py``.

Importing it makes this checkout the one that is imported, whichever one is installed, and its tests' helpers
importable.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "ab.jsonl"

sys.path.insert(0, str(ROOT))
for _folder in (ROOT / "tests", ROOT / "tests" / "engine"):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))
