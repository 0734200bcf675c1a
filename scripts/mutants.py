"""Put N small faults, drawn by a seed, into given files, and print which of them given tests find.

    python scripts/mutants.py --files controlplane/lab/sim --tests tests/unit/sim tests/property --seed 1

The tests run once to learn which lines each reaches. A fault then meets only those that reach it, in a fork of this
process whose functions get the faulty source's code: no file changes, and processes that tests start have no fault.
Its rank hangs on the seed, its file and its text, so that the same ones are drawn after other code has changed.
"""

import argparse
import ast
import gc
import hashlib
import json
import os
import resource
import select
import signal
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
_PAIRS = ("Lt LtE", "Gt GtE", "Eq NotEq", "In NotIn", "Is IsNot", "Add Sub", "Mult FloorDiv", "And Or", "Div Mult")
_SWAPS = dict(pair.split()[::way] for way in (-1, 1) for pair in _PAIRS)
_MEMORY = 8 << 30  # bytes of address space: a loop that no longer ends may also fill memory


class Mutant(NamedTuple):
    """One fault: a span of a file, in bytes, and what stands there instead."""

    path: Path
    line: int
    old: str
    new: str
    start: int
    end: int

    def put_in(self, functions: list[types.FunctionType]) -> None:
        """Give the file's functions the code that they have with the fault; each keeps its line."""
        source, lines = self.path.read_bytes(), "\n" * self.old.count("\n")
        new = self.new + lines if self.new == "pass" else f"({self.new}{lines})"
        faulty = compile(source[: self.start] + new.encode() + source[self.end :], self.path, "exec")
        codes = {(code.co_qualname, code.co_firstlineno): code for code in codes_in(faulty)}
        for each in functions:
            if (code := each.__code__).co_filename == str(self.path):
                each.__code__ = codes.get((code.co_qualname, code.co_firstlineno), code)


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from (each, *codes_in(each))


def replacement(node: ast.AST) -> str | None:
    """The text of the fault that this node allows."""
    names = [type(op).__name__ for op in getattr(node, "ops", [getattr(node, "op", None)])]
    swapped: Any = getattr(ast, _SWAPS[names[0]])() if names[0] in _SWAPS and len(names) == 1 else None
    match node:
        case ast.Compare(left=left, comparators=right) if swapped:
            return ast.unparse(ast.Compare(left, [swapped], right))
        case ast.BinOp(left=left, right=right) if swapped:
            return ast.unparse(ast.BinOp(left, swapped, right))
        case ast.BoolOp(values=values):
            return ast.unparse(ast.BoolOp(swapped, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ast.unparse(operand)
        case ast.Constant(value=bool() | int() | float() as value):
            return str(not value if isinstance(value, bool) else value + 1)
        case ast.Call(func=func, args=[first, second, *rest], keywords=keywords):
            return ast.unparse(ast.Call(func, [second, first, *rest], keywords))
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
            return "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return "pass"
    return None


def inner_nodes(node: ast.AST, inside: bool = False) -> Iterator[Any]:
    """Walk through functions' bodies, but not through f-strings, where positions are unsure."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr) and name != "annotation":
                within = inside or (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and name == "body")
                yield from [child] if within else []
                yield from inner_nodes(child, within)


def drawn(paths: list[Path], number: int, seed: int) -> list[Mutant]:
    """The first so many of all faults, in an order that the seed shuffles."""
    ranks, seen = {}, Counter[str]()
    for path in sorted(file for each in paths for file in ([each] if each.is_file() else each.rglob("*.py"))):
        source = path.read_bytes()
        at = [0]
        for line in source.splitlines(keepends=True):
            at.append(at[-1] + len(line))
        for node in inner_nodes(ast.parse(source)):
            if new := replacement(node):
                start, end = at[node.lineno - 1] + node.col_offset, at[node.end_lineno - 1] + node.end_col_offset
                old = source[start:end].decode()
                seen[key := f"{path.relative_to(ROOT)} {old} {new}"] += 1
                rank = hashlib.sha256(f"{seed} {key} {seen[key]}".encode()).digest()
                ranks[rank] = Mutant(path, node.lineno, old, new, start, end)
    return [ranks[rank] for rank in sorted(ranks)[:number]]


def forked(run: Callable[[], Any], cpu_s: int) -> Any:
    """What it returns in a child, as JSON carries it; None if it does not end by itself."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))  # on a busy machine a clock says little
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
            for output in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), output)
            with os.fdopen(writing, "w") as pipe:
                json.dump(run(), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    if not select.select([reading], [], [], 3 * cpu_s)[0]:  # it waits for what the fault took away
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer) if answer else None


class Faults:
    """A plugin of pytest in place of its loop: once all is imported, a fault costs its tests alone."""

    def __init__(self, mutants: list[Mutant], cpu_s: int) -> None:
        self.mutants, self.cpu_s = mutants, cpu_s
        self.failed: list[str] = []
        self.fates = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed += [report.nodeid] if report.failed else []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        functions = [each for each in gc.get_objects() if isinstance(each, types.FunctionType)]
        watch = coverage.Coverage(
            include=[str(one.path) for one in self.mutants], data_file=None, config_file=False
        )
        failed, lines = forked(lambda: self.watched(session.items, watch), 3600)
        for test in failed:
            print("left out, as it fails without a fault:", test)
        for mutant in self.mutants:
            reaching = {*lines.get(str(mutant.path), {}).get(str(mutant.line), ())}.difference(failed)
            items = [item for item in session.items if item.nodeid in reaching]
            found = forked(lambda: self.finds(items, mutant, functions), self.cpu_s) if items else ""  # noqa: B023
            fate = "unreached" if not items else "survived" if found == "" else "killed"
            self.fates[fate] += 1
            change = f"{mutant.path.relative_to(ROOT)}:{mutant.line} {mutant.old} -> {mutant.new}"
            print(f"{fate:9}", " ".join(change.split())[:160], "by", found or "-", flush=True)
        return True

    def watched(self, items: list[pytest.Item], watch: coverage.Coverage) -> Any:
        """The tests that fail, and by file and line those that reach it."""
        watch.start()
        for item in items:
            watch.switch_context(item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        watch.stop()
        data = watch.get_data()
        return self.failed, {name: data.contexts_by_lineno(name) for name in data.measured_files()}

    def finds(self, items: list[pytest.Item], mutant: Mutant, functions: list[types.FunctionType]) -> str:
        """The first test that fails with the fault, or nothing."""
        mutant.put_in(functions)
        for item in items:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if self.failed:
                return self.failed[0]
        return ""


def main() -> None:
    """Print each fault's fate, then the sum."""
    options = argparse.ArgumentParser()
    options.add_argument("--files", nargs="+", type=Path, required=True, help="files or folders that get faults")
    options.add_argument("--tests", nargs="+", required=True, help="what pytest runs")
    options.add_argument("--mutants", type=int, default=40)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--cpu", type=int, default=120, help="seconds of CPU that the tests of one fault may take")
    chosen, began = options.parse_args(), time.monotonic()
    sys.path.insert(0, str(ROOT))
    faults = Faults(drawn([path.resolve() for path in chosen.files], chosen.mutants, chosen.seed), chosen.cpu)
    pytest.main(["-q", "-s", "-p", "no:cacheprovider", *chosen.tests], [faults])
    sums = ", ".join(f"{count} {fate}" for fate, count in sorted(faults.fates.items()))
    print(f"{sums} in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
