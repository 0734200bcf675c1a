"""``make weight``: what whoever carries the project on has to hold: lines, words, tests, commands, options, keys.

Counts what git tracks, without generated code. CPU minutes are those of the latest run of each set of tests,
which ``tests/conftest.py`` notes in ``build/test-cpu``.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import typer
from generate_reference import commands

from controlplane.cli.app import app
from controlplane.config.model import Config
from controlplane.config.walk import tables

ROOT = Path(__file__).resolve().parents[1]
CPU = ROOT / "build" / "test-cpu"
_GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
_ROOMS = {
    "product": (
        "cli",
        "config",
        "core",
        "daemon",
        "emit",
        "fleet",
        "gate",
        "operate",
        "tool_calls",
        "transport",
        "wire",
    ),
    "laboratory": ("lab",),
}


def tracked(*patterns: str) -> list[Path]:
    """The files under version control that fit one of the patterns."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def lines(folder: str) -> tuple[int, int]:
    """Files of Python below a folder, and their lines."""
    files = [path for path in tracked(f"{folder}/**.py") if not _GENERATED.search(path.name)]
    return len(files), sum(path.read_text().count("\n") for path in files)


def words(*patterns: str) -> tuple[int, int]:
    """Files of Markdown, and their words."""
    files = tracked(*patterns)
    return len(files), sum(len(path.read_text().split()) for path in files)


def loose(folder: str) -> int:
    """Modules that stand in no room of that folder."""
    return len([path for path in tracked(f"{folder}/*.py") if path.parent == ROOT / folder]) - 1


def cpu_minutes() -> str:
    """Tests, and the CPU minutes that they took when they last ran."""
    runs = [json.loads(path.read_text()) for path in sorted(CPU.glob("*.json"))]
    if not runs:
        return "not known: `make test` notes it"
    return f"{sum(run['tests'] for run in runs):,} tests, {sum(run['cpu_s'] for run in runs) / 60:.0f} CPU minutes"


def rows() -> Iterator[tuple[str, str]]:
    """What is counted, and the count."""
    for name, rooms in _ROOMS.items():
        yield name, f"{sum(lines(f'controlplane/{room}')[1] for room in rooms):,} lines"
        for room in rooms:
            files, count = lines(f"controlplane/{room}")
            yield f"  {room}", f"{count:,} lines, {files} files"
    for folder in ("engine_hooks", "scripts", "bench", "tests"):
        files, count = lines(folder)
        yield folder, f"{count:,} lines, {files} files"
    yield "tests as run", cpu_minutes()
    yield "loose files", f"core {loose('controlplane/core')}, daemon {loose('controlplane/daemon')}"
    pages, count = words("*.md")
    yield "documents", f"{count:,} words, {pages} pages"
    for folder in ("docs/adr", "docs/explanation", "docs/how-to", "docs/reference", "docs/tutorial"):
        pages, count = words(f"{folder}/*.md")
        yield f"  {folder}", f"{count:,} words, {pages} pages"
    all_commands = dict(commands(typer.main.get_command(app), "penstock"))
    options = [each for each in all_commands["penstock simulate"].params if "--help" not in each.opts]
    keys = sum(1 for table in tables(Config()) for _ in table.items())
    targets = re.findall(r"^[a-z-]+:.*##", (ROOT / "Makefile").read_text(), re.M)
    yield "commands", f"{len(all_commands)}; options of simulate {len(options)}; configuration keys {keys}"
    yield "make targets", f"{len(targets)} in its help"


if __name__ == "__main__":
    for label, value in rows():
        print(f"{label:20} {value}")  # noqa: T201 - what a command prints
