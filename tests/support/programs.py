"""Programs that PyPI does not have: Chromium, Prometheus, nginx. ``make debian-tools`` gets them where it may."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from debian_tools import find


def found(program: str) -> str:
    """Where it is. A test that was not skipped without it fails, and says what is missing."""
    path = find(program)
    assert path is not None, f"no {program}: `make debian-tools` says what to install"
    return path


def needs(*programs: str) -> pytest.MarkDecorator:
    """A test of them is skipped where they are missing; not in CI, where that is a failure."""
    missing = [program for program in programs if find(program) is None]
    return pytest.mark.skipif(
        bool(missing) and os.environ.get("CI") != "true",
        reason=f"no {' and no '.join(missing)}: `make debian-tools` says what to install",
    )
