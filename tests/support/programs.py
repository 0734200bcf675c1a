"""Programs that PyPI does not have: Chromium, Prometheus. ``make debian-tools`` gets them where it may."""

import os
import shutil
import sys
from pathlib import Path

import pytest


def found(program: str) -> str:
    """Where it is: on the path or beside this interpreter; empty if nowhere."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return shutil.which(program, path=path) or ""


def needs(*programs: str) -> pytest.MarkDecorator:
    """A test of them is skipped where they are missing; not in CI, where that is a failure."""
    missing = [program for program in programs if not found(program)]
    return pytest.mark.skipif(
        bool(missing) and os.environ.get("CI") != "true",
        reason=f"no {' and no '.join(missing)}: `make debian-tools` says what to install",
    )
