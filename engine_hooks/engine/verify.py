"""Proves that an engine has what its plugin hooks: every target, with the parameters that hooks rely on."""

import importlib
import inspect
import logging
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine_hooks.engine.targets import Feature, Target

log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A target that is missing, has other parameters or was not hooked; ``message`` says which."""

    feature: Feature
    path: str
    message: str


def verify(targets: Iterable[Target]) -> list[Problem]:
    """What is wrong with ``targets`` in this engine; nothing if it has them all."""
    return [
        Problem(feature=target.feature, path=target.path, message=message)
        for target in targets
        if (message := _what_is_wrong(target))
    ]


def report_problems(problems: Iterable[Problem], engine: str) -> frozenset[Feature]:
    """Log each problem in one line; return the features that cannot work. ``engine``: its name and version."""
    lacking = set()
    for problem in problems:
        lacking.add(problem.feature)
        what = "the whole plugin" if problem.feature is Feature.PROBE else f"the {problem.feature}"
        log.warning("penstock: %s stays off with %s: %s", what, engine, problem.message)
    return frozenset(lacking)


def _what_is_wrong(target: Target) -> str:
    path = target.path
    try:
        found = resolve(path)
    except Exception as error:  # a broken module raises whatever it likes
        return f"{path}: {line(error)}"
    if not target.first and not target.has:
        return ""
    try:
        names = list(inspect.signature(found).parameters)
    except Exception as error:  # a class may make its signature itself
        return f"{path}: its parameters cannot be told: {line(error)}"
    shown = f"({', '.join(names)})"
    if tuple(names[: len(target.first)]) != target.first:
        return f"{path}: expected the first parameters ({', '.join(target.first)}), found {shown}"
    missing = [name for name in target.has if name not in names]
    return f"{path}: has no parameter {', '.join(missing)}" if missing else ""


def resolve(path: str) -> Any:
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


def line(error: BaseException) -> str:
    """What it says, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def print_report(engine: str, version: str, targets: Sequence[Target], *, supported: Sequence[str]) -> int:
    """Print for operators what is found of ``targets`` and which features work; 0 if every one does.

    ``version`` is empty where the engine is not installed.
    """
    if not version:
        sys.stdout.write(f"{engine} is not installed in this Python environment\n")
        return 1
    tested = "tested" if version in supported else "not tested"
    lines = [f"{engine} {version}: {tested} (supported: {', '.join(supported)})"]
    lacking = set()
    for target in targets:
        problems = verify((target,))
        lacking |= {problem.feature for problem in problems}
        lines.append(f"{'missing' if problems else 'found  '} {target.feature:5} {target.path}")
        lines += (f"        {problem.message}" for problem in problems)
    wanted = {target.feature for target in targets}
    for feature in (each for each in Feature if each in wanted):
        lines.append(f"{feature}: {'works here' if not lacking & {feature, Feature.PROBE} else 'stays off'}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if lacking else 0
