"""The house style, as far as a machine can tell; formatting, types and rooms are ``make lint``'s."""

import ast
import json
import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES = 450  # of a file, unless its one idea takes more and ``LONGER`` says why
MOST_LINES_WITH_A_REASON = 600
MOST_FUNCTION_LINES = 60
PYTHON = [path for room in ("controlplane", "engine_hooks") for path in sorted((ROOT / room).rglob("*.py"))]
SOURCES = [path for path in PYTHON if "_generated" not in path.parts]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

# A signature of options, one a line, is the command's reference and no logic: it is not counted.
COUNTED_FROM_THE_BODY = ROOT / "controlplane" / "cli"
# Longer in one idea, which a cut would tear: each path with its reason.
LONGER: dict[str, str] = {
    "controlplane/core/model/events.py": "every event, a class each, and the table of who may tell it",
    "controlplane/daemon/daemon.py": "recovers, stands by or leads, serves; its parts lie beside it",
    "controlplane/gate/gate.py": "who may pass; what it holds, hears and remembers lies in files beside it",
    "controlplane/emit/publisher_loop.py": "one thread, from connection to end; what it keeps lies beside it",
}

CORE_FORBIDS = {"asyncio", "time", "random", "logging", "os", "socket", "threading"}
EXTRAS = {"numpy", "matplotlib", "jinja2", "uvicorn", "starlette", "ray"}
OF_THE_DAEMON = {
    "anyio",
    "rich",
    "structlog",
    "textual",
    "typer",
    "uvloop",
    "aiohttp",
    "grpc",
    "grpc_health",
    "grpc_reflection",
    "opentelemetry",
    "prometheus_client",
    "watchfiles",
}

# Built from parts, so that this file does not hold what it looks for.
MACHINE_PATH = re.compile(r"(?<![\w.~$}-])/(?:" + "|".join(("work", "root", "home")) + r")/[\w.]")
REGISTRY_HOST = re.compile(r"\b(?:" + "|".join(("pypi", "files.pythonhosted", "registry.npmjs")) + r")\.org\b")
UNDONE = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def tracked() -> tuple[Path, ...]:
    """What git tracks, or would; without git, every file that is no build output."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = [name_of(path) for path in ROOT.rglob("*") if not any(part[0] == "." for part in path.parts[1:])]
    return tuple(path for name in listed if name and (path := ROOT / name).is_file())


@cache
def lines_that_match(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{name_of(path)}:{n}" for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)]
    return found


def definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Every class and function, with its dotted name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            name = f"{prefix}{child.name}"
            yield name, child
            yield from definitions(child, f"{name}.")
        else:
            yield from definitions(child, prefix)


# Size


def test_no_file_is_too_long() -> None:
    long = {name_of(path): count for path in SOURCES if (count := len(path.read_text().splitlines())) > MOST_LINES}
    assert {name: count for name, count in long.items() if name not in LONGER} == {}
    assert set(LONGER) <= set(long), "an exception that is not needed any more"
    assert all(long[name] <= MOST_LINES_WITH_A_REASON and reason for name, reason in LONGER.items())


def test_no_function_is_too_long() -> None:
    long = []
    for path in SOURCES:
        from_the_body = path.parent == COUNTED_FROM_THE_BODY
        for name, node in definitions(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                continue
            first = node.body[0].lineno if from_the_body else node.lineno
            lines = (node.end_lineno or first) - first + 1
            if lines > MOST_FUNCTION_LINES:
                long.append(f"{name_of(path)}: {name}: {lines}")
    assert long == []


# What is said


def is_public(name: str) -> bool:
    return not any(part.startswith("_") for part in name.split("."))


def _says_itself(name: str, node: Definition) -> bool:
    """Methods and closures belong to what their owner says."""
    return not isinstance(node, ast.ClassDef) and "." in name


def test_every_module_class_and_function_is_documented() -> None:
    bare = []
    for path in SOURCES:
        tree = tree_of(path)
        if tree.body and not ast.get_docstring(tree):
            bare.append(name_of(path))
        bare += [
            f"{name_of(path)}: {name}"
            for name, node in definitions(tree)
            if is_public(name) and not ast.get_docstring(node) and not _says_itself(name, node)
        ]
    assert bare == []


def test_no_machine_paths() -> None:
    assert lines_that_match(MACHINE_PATH) == []


def test_no_registry_hosts() -> None:
    assert lines_that_match(REGISTRY_HOST) == []


def test_nothing_is_left_to_do() -> None:
    assert [line for line in lines_that_match(UNDONE) if not line.startswith("docs/")] == []


def test_no_two_files_of_tests_bear_one_name() -> None:
    """pytest imports them by their names alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_skipped_tests_say_why() -> None:
    silent = []
    for path in TESTS:
        tree = tree_of(path)
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        lines = [call.lineno for call in calls if _leaves_out(call.func) and not _reasons(call)]
        marks = (mark for _, node in definitions(tree) for mark in node.decorator_list)
        lines += [mark.lineno for mark in marks if _leaves_out(mark)]
        silent += [f"{name_of(path)}:{line}" for line in lines]
    assert silent == []


def _leaves_out(function: ast.expr) -> bool:
    return ast.unparse(function).startswith("pytest.") and ast.unparse(function).endswith(
        (".skip", "skipif", "xfail")
    )


def _reasons(call: ast.Call) -> list[ast.expr]:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "reason"]
    return given + (call.args if ast.unparse(call.func).endswith((".skip", "pytest.xfail")) else [])


# Who imports what


def imported(path: Path) -> set[str]:
    """The top-level names of all modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: imports are absolute here"
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "controlplane/core").rglob("*.py")), ids=name_of)
def test_core_imports_the_standard_library_only(path: Path) -> None:
    names = imported(path) - {"controlplane"}
    assert names <= set(sys.stdlib_module_names)
    assert not names & CORE_FORBIDS


@pytest.mark.parametrize(
    ("modules", "hidden"),
    [
        (
            "controlplane.daemon.compose, controlplane.cli.app, controlplane.cli.presets, "
            "controlplane.operate.doctor",
            EXTRAS,
        ),
        (
            "controlplane.cli, controlplane.config, controlplane.emit.emitter, controlplane.gate, "
            "engine_hooks.sglang.plugin, engine_hooks.vllm.plugin, engine_hooks.tools.shared",
            EXTRAS | OF_THE_DAEMON,
        ),
    ],
    ids=["daemon", "hooks"],
)
def test_what_it_does_not_need_may_be_missing(modules: str, hidden: set[str]) -> None:
    """As if it were not installed: nats-py would import aiohttp where it finds it."""
    gone = "".join(f"sys.modules[{name!r}] = None; " for name in sorted(hidden))
    subprocess.run([sys.executable, "-c", f"import sys; {gone}import {modules}"], check=True, cwd=ROOT)


def test_the_daemon_imports_nothing_heavy() -> None:
    code = "import json, sys, controlplane.daemon.compose; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert "controlplane" in loaded
    assert not loaded & EXTRAS


# The command


def test_help_comes_at_once() -> None:
    """Within 0.4 s on a quiet machine: below five times the CPU of importing what prints it; the least of three."""

    def cpu_s(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    printing, helping = [], []
    for _ in range(3):
        printing.append(cpu_s("-c", "import rich.console, typer.main"))
        helping.append(cpu_s("-m", "controlplane", "--help"))
    assert min(helping) < 5 * min(printing)
