"""``python -m tests.growth``: very many come and go, with the bounds as they are; prints what got longer."""

import argparse
import asyncio
import gc
import sys
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does, for what tests have in common

from .crowd import Crowd
from .live_objects import sizes

parser = argparse.ArgumentParser(prog="python -m tests.growth", description=__doc__)
parser.add_argument("--programs", type=int, default=1_000_000, help="with a child and an anonymous one each")
parser.add_argument("--preset", default="penstock")
options = parser.parse_args()


def resident_mb() -> float:
    """Of this process, with nothing that waits for the collector."""
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 1e6


crowd, found = Crowd(options.preset), []
for share in (0.4, 0.6):  # the first fills what is bounded
    asyncio.run(crowd.live(round(options.programs * share)))
    crowd.rest()
    found.append((sizes(*crowd.roots), resident_mb()))
(before, before_mb), (after, after_mb) = found
for label, length in sorted(after.items()):
    if length > before[label]:
        sys.stdout.write(f"{label:40} {before[label]:>9,} -> {length:>9,}\n")
sys.stdout.write(f"{crowd.came:,} came and went; resident {before_mb:.1f} -> {after_mb:.1f} MB\n")
sys.exit(after_mb > 1.2 * before_mb)
