"""Make the environments of the agent tests: OpenHands, other frameworks, a trainer, harnesses of the command line.

Prints each environment's path; progress goes to the standard error. It takes some minutes and two GB the first
time; later calls find them complete, and make them anew only when their requirements changed. They lie below
``$XDG_CACHE_HOME/penstock`` or ``~/.cache/penstock``, named after a digest of their requirements. OpenHands needs
Python 3.12 and the trainer 3.11, which must be on this machine.
"""

import argparse
import hashlib
import os
import shutil
import sys
import time
import tomllib
from pathlib import Path

from environments import Problem, base_python, cache, lock, note, read, run, step

ROOT = Path(__file__).resolve().parents[1]
SETS = {
    "openhands": "openhands.sdk, openhands.tools, minisweagent",
    "others": "agents, langgraph, mcp",
    "trainer": "datasets, ray, skyrl_gym, torch, transformers",
}
HARNESSES = "harnesses"  # of the command line, from npm: where there is none, neither are they
ALL = (*SETS, *([HARNESSES] if shutil.which("npm") else []))
PYTHON_VERSION = (3, 12)
TRAINERS_PYTHON = (3, 11)  # for which a build of torch for CPUs is on offer, as in the engines' environments
NEEDED_BYTES = 2 << 30
STAMP = "penstock-agent-env"  # the digest, once the environment is complete


def requirements(name: str) -> Path:
    """What is in the set of that name."""
    file = "package.json" if name == HARNESSES else f"requirements-{name}.txt"
    return ROOT / "tests" / "agents" / file


def without_dependencies(name: str) -> Path:
    """What of it asks for a GPU or another Python without need, there or not: installed as it is."""
    return ROOT / "tests" / "agents" / f"requirements-{name}-no-deps.txt"


def digest(name: str) -> str:
    """Of all that it is made from; Penstock's own code is each checkout's."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    listed = requirements(name).read_bytes() + read(without_dependencies(name)).encode()
    return hashlib.sha256(listed + repr(needed).encode()).hexdigest()[:12]


def path(name: str) -> Path:
    """Where it is, or would be made."""
    return cache() / f"agents-{name}-{digest(name)}"


def is_complete(name: str) -> bool:
    """Whether it was made from today's requirements."""
    return read(path(name) / STAMP) == digest(name)


def make(name: str) -> None:
    """Make it, or find it. Raises ``Problem``."""
    place = path(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    with lock(place):
        if is_complete(name):
            return
        free = shutil.disk_usage(place.parent).free
        if free < NEEDED_BYTES:
            raise Problem(
                f"{place.parent} has {free >> 20} MiB free, and the environment needs {NEEDED_BYTES >> 20}"
            )
        began = time.monotonic()
        note(f"agents ({name}): making {place}")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        (_harnesses if name == HARNESSES else _frameworks)(name, place)
        (place / STAMP).write_text(digest(name))
        note(f"ready after {time.monotonic() - began:.0f} s")


def _frameworks(name: str, place: Path) -> None:
    python = str(place / "bin" / "python")
    version = TRAINERS_PYTHON if name == "trainer" else PYTHON_VERSION
    run([base_python(version, f"agents ({name})"), "-m", "venv", str(place)], place)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    step("frameworks", lambda: run([*pip, "--requirement", str(requirements(name))], place))
    if (alone := without_dependencies(name)).exists():
        bare = [*pip, "--no-deps", "--ignore-requires-python", "--requirement", str(alone)]
        step("what goes without its dependencies", lambda: run(bare, place))
    step("Penstock", lambda: run([*pip, "--editable", str(ROOT)], place))
    # LiteLLM looks for its prices on the network in a thread, which breaks the import where there is none.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    step("a first import", lambda: run([python, "-c", f"import {SETS[name]}"], place))


def _harnesses(name: str, place: Path) -> None:
    shutil.copy(requirements(name), place)
    step("harnesses", lambda: run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"], place))
    for script in ("opencode-ai/postinstall.mjs", "@anthropic-ai/claude-code/install.cjs"):  # each fetches nothing
        step(script, lambda script=script: run(["node", f"node_modules/{script}"], place))  # type: ignore[misc]


def main() -> int:
    """Make the environments and print their paths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=ALL, help=f"which: {', '.join(ALL)}; default: all")
    parser.add_argument("--check", action="store_true", help="make nothing; exit with 1 if one is not up to date")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.sets if name not in ALL]:
        parser.error(f"no such set: {', '.join(unknown)}; there are {', '.join(ALL)}")
    for name in arguments.sets:
        if arguments.check and not is_complete(name):
            note(f"{path(name)} is not there or not up to date")
            return 1
        try:
            make(name)
        except (Problem, OSError) as problem:
            note(f"agent-env: {problem}")
            return 1
        sys.stdout.write(f"{path(name)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
