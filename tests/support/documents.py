"""The documents' blocks of commands, and who runs them.

What stands above a block says who:

``<!-- run -->``            all such blocks of the page, in one shell, from top to bottom
``<!-- run: live -->``      each line in a terminal of its own, beside a node unless the block starts one
``<!-- run by: FILE -->``   a test of that file does
``<!-- not run: WHY -->``   nobody can here
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("bench/*.md")]
)
_FENCE = re.compile(r"(?:^<!-- ((?:run|not run)[^\n]*) -->\n)?^```(\w*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    marker: str  # "" where there is none
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Its command lines: after ``$`` in a console, every line in bash."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return (
            [line for line in lines if line.strip() and not line.startswith("#")] if self.language == "bash" else []
        )


def name(page: Path) -> str:
    """The page as people call it."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, marker: str | None = None) -> Iterator[Block]:
    """The fenced blocks of a page, of one marker or all."""
    for found in _FENCE.findall(page.read_text()):
        block = Block(*found)
        if marker is None or block.marker == marker:
            yield block


def without_blocks(page: Path) -> str:
    """The page's prose."""
    return _FENCE.sub("", page.read_text())


def words(line: str) -> list[str]:
    """A command line's words, without what is written after a ``#``."""
    return shlex.split(line, comments=True)
