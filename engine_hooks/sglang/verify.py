"""Proves that this SGLang has what the plugin hooks, and that its hooks were really bound.

SGLang logs a hook that it cannot apply and goes on; a plugin that lost half its hooks that way would tell half the
truth. ``python -m engine_hooks.sglang.verify`` prints what is found and what is missing here.
"""

import importlib
import importlib.metadata
import inspect
import logging
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine_hooks.sglang.targets import KNOWN_DIFFERENCES, SUPPORTED_VERSIONS, TARGETS, Feature, Target

log = logging.getLogger("penstock")

_UNPROVEN = {  # server arguments, and the most that is tested
    "tp_size": 1,
    "dp_size": 1,
    "pp_size": 1,
    "nnodes": 1,
    "tokenizer_worker_num": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A target that is missing, has other parameters or was not hooked; ``message`` says which."""

    feature: Feature
    path: str
    message: str


def sglang_version() -> str:
    """The installed version; empty where there is none."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return ""


def verify(targets: Iterable[Target] = TARGETS) -> list[Problem]:
    """What is wrong with ``targets`` in this SGLang; nothing if it has them all."""
    problems = []
    for target in targets:
        causes = [_what_is_wrong(target, path) for path in target.paths]
        if all(causes):
            problems.append(Problem(feature=target.feature, path=target.paths[0], message="; ".join(causes)))
    return problems


def present(paths: Iterable[str]) -> list[str]:
    """Those of ``paths`` that this SGLang has."""
    found = []
    for path in paths:
        try:
            pkgutil.resolve_name(path)
        except (ImportError, AttributeError):
            continue
        found.append(path)
    return found


def unbound(hooks: Mapping[str, Callable[..., Any]], feature: Feature = Feature.PROBE) -> list[Problem]:
    """Which of ``hooks``, by target, were not bound. Call it once SGLang has applied its hooks."""
    problems = []
    for path, hook in hooks.items():
        try:
            bound = _is_bound(_resolve(path), hook)
        except Exception as error:
            problems.append(Problem(feature=feature, path=path, message=f"{path}: {_line(error)}"))
            continue
        if not bound:
            problems.append(Problem(feature=feature, path=path, message=f"{path}: SGLang did not bind the hook"))
    return problems


def report_problems(problems: Iterable[Problem]) -> frozenset[Feature]:
    """Log each problem in one line; return the features that cannot work."""
    lacking = set()
    for problem in problems:
        lacking.add(problem.feature)
        what = "the whole plugin" if problem.feature is Feature.PROBE else f"the {problem.feature}"
        log.warning("penstock: %s stays off with SGLang %s: %s", what, sglang_version() or "?", problem.message)
    return frozenset(lacking)


def unproven(server_args: Any) -> str:
    """Why the plugin stays passive with these server arguments; empty if it need not."""
    for name, most in _UNPROVEN.items():
        value = getattr(server_args, name, most)
        if isinstance(value, int) and value > most:
            return f"{name}={value} is not supported yet, at most {most} is"
    mode = getattr(server_args, "disaggregation_mode", "null")
    if mode not in (None, "null"):
        return f"disaggregation_mode={mode} is not supported yet"
    return ""


def _what_is_wrong(target: Target, path: str) -> str:
    try:
        found = _resolve(path)
    except Exception as error:  # a broken module raises whatever it likes
        return f"{path}: {_line(error)}"
    if not target.first and not target.has:
        return ""
    try:
        names = list(inspect.signature(found).parameters)
    except Exception as error:  # a class may make its signature itself
        return f"{path}: its parameters cannot be told: {_line(error)}"
    shown = f"({', '.join(names)})"
    if tuple(names[: len(target.first)]) != target.first:
        return f"{path}: expected the first parameters ({', '.join(target.first)}), found {shown}"
    missing = [name for name in target.has if name not in names]
    return f"{path}: has no parameter {', '.join(missing)}" if missing else ""


def _resolve(path: str) -> Any:
    """What ``path`` names. Raises what is wrong; of a module that is there and cannot be imported, why."""
    try:
        return pkgutil.resolve_name(path)
    except AttributeError as missing:
        name = ""
        for part in path.split("."):
            name = f"{name}.{part}" if name else part
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name == name:  # no module, so an attribute that is not there
                    break
                raise
        raise missing


def _is_bound(function: Any, hook: Callable[..., Any]) -> bool:
    """Whether one of the wrappers around SGLang's function holds ``hook``."""
    while function is not None:
        cells = getattr(function, "__closure__", None) or ()
        if function is hook or any(_content(cell) is hook for cell in cells):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def main() -> int:
    """Print the report for operators; 0 if every feature works here."""
    version = sglang_version()
    if not version:
        sys.stdout.write("SGLang is not installed in this Python environment\n")
        return 1
    tested = "tested" if version in SUPPORTED_VERSIONS else "not tested"
    lines = [f"SGLang {version}: {tested} (supported: {', '.join(SUPPORTED_VERSIONS)})"]
    if version in KNOWN_DIFFERENCES:
        lines.append(f"known differences: {KNOWN_DIFFERENCES[version]}")
    lacking = set()
    for target in TARGETS:
        problems = verify((target,))
        lacking |= {problem.feature for problem in problems}
        lines.append(f"{'missing' if problems else 'found  '} {target.feature:5} {target.paths[0]}")
        lines += [f"        {problem.message}" for problem in problems]
    for feature in Feature:
        works = feature not in lacking and Feature.PROBE not in lacking
        lines.append(f"{feature}: {'works here' if works else 'stays off'}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
