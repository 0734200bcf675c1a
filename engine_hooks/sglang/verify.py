"""Proves that this SGLang has what the plugin hooks, and that its hooks were really bound.

SGLang logs a hook that it cannot apply and goes on; a plugin that lost half its hooks that way would tell half the
truth. ``python -m engine_hooks.sglang.verify`` prints what is found and what is missing here.
"""

import importlib.metadata
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from engine_hooks.engine import verify as shared
from engine_hooks.engine.targets import Feature
from engine_hooks.engine.verify import Problem, line, resolve
from engine_hooks.sglang.processes import unproven_ranks
from engine_hooks.sglang.targets import SUPPORTED_VERSIONS, TARGETS

_UNPROVEN = {  # server arguments that may be 1 at most, and why
    "pp_size": "rank 0's word, by which ranks decide alike, reaches the first stage and is not handed on",
    "attn_cp_size": "that ranks which share a context's tokens hold alike has not been tried",
    "nnodes": "ranks on several hosts have not been tried",
}


def sglang_version() -> str:
    """The installed version; empty where there is none."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return ""


def report_problems(problems: Iterable[Problem]) -> frozenset[Feature]:
    """Log each problem in one line; return the features that cannot work."""
    return shared.report_problems(problems, f"SGLang {sglang_version() or '?'}")


def unbound(hooks: Mapping[str, Callable[..., Any]], feature: Feature = Feature.PROBE) -> list[Problem]:
    """Which of ``hooks``, by target, were not bound. Call it once SGLang has applied its hooks."""
    problems = []
    for path, hook in hooks.items():
        try:
            bound = _is_bound(resolve(path), hook)
        except Exception as error:
            problems.append(Problem(feature=feature, path=path, message=f"{path}: {line(error)}"))
            continue
        if not bound:
            problems.append(Problem(feature=feature, path=path, message=f"{path}: SGLang did not bind the hook"))
    return problems


def unproven(server_args: Any) -> str:
    """Why the plugin stays passive with these server arguments; empty if it need not."""
    for name, why in _UNPROVEN.items():
        value = getattr(server_args, name, 1)
        if isinstance(value, int) and value > 1:
            return f"{name}={value} is not supported yet: {why}"
    return unproven_ranks(server_args)


def unknown_tree(tree: Any) -> str:
    """Why nothing can be kept in this cache; empty if it can be."""
    components = getattr(tree, "tree_components", ())
    if hasattr(tree, "tree_core") and components and components[0].name == "FULL":
        return ""
    return f"its cache is {type(tree).__name__}, and only a radix tree with full attention in it is known"


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


def main() -> int:
    """Print the report for operators; 0 if every feature works here."""
    return shared.print_report("SGLang", sglang_version(), TARGETS, supported=SUPPORTED_VERSIONS)


if __name__ == "__main__":
    sys.exit(main())
