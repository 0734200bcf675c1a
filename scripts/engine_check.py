"""What of the plugin binds in a version of an engine, target by target and without a model.

The version needs no preparation: half a minute lays it on its engine's environment (``scripts/engine_env.py``).
With ``--write`` the page of versions gets its row instead; without any version all its rows are checked again.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import engine_env
from engine_env import ROOT, Environment, versions_of
from environments import Problem, note

PAGE = ROOT / "docs" / "reference" / "engine-versions.md"
COLUMNS = ("probe", "gate", "pins", "host", "ranks", "chunks")
_ROW = re.compile(r"^\| (\S+) (\d\S*) \|.*\n", re.MULTILINE)


def report(environment: Environment) -> str:
    """What ``verify`` says there. Raises ``Problem`` where the engine cannot be installed."""
    try:
        engine_env.make(environment)
    except Problem as problem:
        if not Path(environment.python).exists():
            raise
        note(
            f"engine-check: {problem}"
        )  # a module of it cannot be imported: the report says which targets that takes
    command = [environment.python, "-W", "ignore", "-m", f"engine_hooks.{environment.kind.name}.verify"]
    variables = os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(ROOT)}
    said = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True).stdout
    return said[max(0, said.find(f"{environment.engine}:")) :]  # an engine may say more, before it


def row(environment: Environment, said: str) -> str:
    """The page's row of a version: by column what works, and what is missing where something does not."""
    works = dict(re.findall(r"^(\w+): (works here|stays off)$", said, re.MULTILINE))
    missing = re.findall(r"^missing (\w+)\s+(\S+)$", said, re.MULTILINE)
    cells = ["yes" if works.get(column) == "works here" else "no" if column in works else "" for column in COLUMNS]
    lacks = ", ".join(f"`{'.'.join(path.split('.')[-2:])}`" for _, path in missing)
    tested = "in every run" if environment.version in environment.kind.tested else ""
    return "| " + " | ".join((environment.engine, *cells, tested, lacks)) + " |\n"


def write(rows: dict[str, str]) -> None:
    """Put rows, by the engine's title and number, into the page: the newest version of each engine first."""
    text = PAGE.read_text()
    known = {f"{found[1]} {found[2]}": found[0] for found in _ROW.finditer(text)} | rows
    begin = _ROW.search(text)
    assert begin is not None, f"{PAGE} has no table of versions"
    rest = _ROW.sub("", text)
    table = "".join(known[name] for name in sorted(known, key=_order))
    PAGE.write_text(rest[: begin.start()] + table + rest[begin.start() :])


def _order(name: str) -> tuple[str, list[int]]:
    engine, _, number = name.rpartition(" ")
    return engine, [-int(part) for part in re.findall(r"\d+", number)]


def _listed() -> list[str]:
    names = {kind.title: f"{kind.name}-" for kind in engine_env.KINDS.values()}
    return [f"{names[found[1]]}{found[2]}" for found in _ROW.finditer(PAGE.read_text())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="*", type=engine_env.asked_version, help="as sglang-0.5.23, vllm-0.33.0")
    parser.add_argument("--write", action="store_true", help="the page of versions instead of the reports")
    options = parser.parse_args()
    rows, failed = {}, False
    for environment in map(Environment, versions_of(" ".join(options.version or _listed()))):
        try:
            said = report(environment)
        except Problem as problem:
            note(f"engine-check: {problem}")
            failed = True
            continue
        rows[environment.engine] = row(environment, said)
        failed |= "stays off" in said
        if not options.write:
            sys.stdout.write(said)
    if options.write:
        write(rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
