"""Which code made a result."""

import hashlib
import subprocess
from collections.abc import Iterable
from pathlib import Path

from controlplane import __version__

ROOT = Path(__file__).resolve().parents[3]


def revision() -> str:
    """Of the checkout that this code lies in, with a + where it has changes; else the number of its version."""
    if (ROOT / ".git").exists():
        command = ["git", "describe", "--always", "--dirty=+", "--abbrev=9"]
        try:
            described = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
        except OSError:
            described = ""
        if described:
            return described
    return __version__


def code_digest(parts: Iterable[Path]) -> str:
    """Of Python files, and of all those in folders: the same where the code is."""
    files = sorted(path for part in parts for path in (part.rglob("*.py") if part.is_dir() else (part,)))
    return digest("".join(path.read_text() for path in files))


def digest(text: str) -> str:
    """Ten hexadecimal digits that stand for ``text``."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]
