"""Programs that send sub-agents and wait for them: a real daemon, bus and load generator, and the engine double."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.daemon_process import NODE
from support.whole_loop import Loop, serving

from controlplane.core.model.types import seconds
from controlplane.lab.workload.trace import ProgramTrace, Trace, Turn
from controlplane.operate.tree import critical_path, tree
from controlplane.wire.decisions import DecisionRecord, RunRecord, log_path, read_decisions

ROOTS, CHILDREN = 6, 3
TOOL_S = 2.0  # of a sub-agent


@pytest.fixture
def governed(tmp_path: Path) -> Iterator[Loop]:
    yield from serving(Loop(tmp_path, "penstock", rate=2.0))


def forest() -> Trace:
    """Roots whose first call sends children of two turns each; together they overfill the pool."""
    call = Turn(input_tokens=4000, output_tokens=100, tool="Task", tool_ms=0.0)
    programs = []
    for root in range(ROOTS):
        last = Turn(input_tokens=5000, output_tokens=200)
        programs.append(ProgramTrace(program_id=f"r{root}", source="test", turns=(call, last)))
        for child in range(CHILDREN):
            turns = (
                Turn(input_tokens=3000, output_tokens=100 * (child + 1), tool="bash", tool_ms=1000 * TOOL_S),
                Turn(input_tokens=4000, output_tokens=100),
            )
            programs.append(
                ProgramTrace(
                    program_id=f"r{root}.{child}",
                    source="test",
                    turns=turns,
                    parent_id=f"r{root}",
                    family_tokens=2000,
                )
            )
    return Trace(programs=tuple(programs), rejected=[])


def test_a_forest_ends_and_its_log_tells_what_each_trees_time_was_made_of(governed: Loop) -> None:
    result = governed.run(0, trace=forest())
    assert (result.summary.programs_ended, result.summary.programs_failed) == (ROOTS, 0)
    assert len(result.programs) == ROOTS * (1 + CHILDREN)
    path = log_path(NODE, governed.folder)
    roots = [each.program_id for each in result.programs if not each.parent_id]

    def told() -> bool:
        runs = {each.program_id: each.turns for each in read_decisions(path) if isinstance(each, RunRecord)}
        return len(runs) == ROOTS * (1 + CHILDREN) and set(runs.values()) == {2}

    governed.until(told, "the daemon wrote fewer runs or turns than there were")
    records = list(read_decisions(path))
    for root in roots:
        found = tree(records, root)
        assert found is not None
        assert len(found.children) == CHILDREN
        stretches = critical_path(found)
        assert (stretches[0].began_ns, stretches[-1].ended_ns) == (found.run.began_ns, found.run.ended_ns)
        assert all(before.ended_ns == after.began_ns for before, after in pairwise(stretches))
        # The root thinks before it sends its children and when they are back. A daemon that stalled reads of
        # both at one time, with nothing between them.
        runs = [child.run for child in found.children]
        if found.run.began_ns < min(each.began_ns for each in runs):
            assert stretches[0].program_id == root
        if max(each.ended_ns for each in runs) < found.run.ended_ns:
            assert stretches[-1].program_id == root
    adopted = {each.program_id for each in records if isinstance(each, DecisionRecord) and each.kind == "adopt"}
    assert adopted <= {each.program_id for each in result.programs if each.parent_id}
    # A daemon that stalled reads of a sub-agent's whole life at one time, and has nobody to tell of it.
    assert adopted >= {each.program_id for each in records if isinstance(each, RunRecord) and lived(each)}

    shown = explained(roots[0], governed.folder)
    assert f"tree: {1 + CHILDREN} programs" in shown
    assert "critical path" in shown
    child = next(each.program_id for each in result.programs if each.parent_id == roots[0])
    assert f"a sub-agent of {roots[0]}: 2 turns" in explained(child, governed.folder)


def lived(run: RunRecord) -> bool:
    """Whether the daemon saw a sub-agent for as long as its tool took."""
    return bool(run.parent_id) and run.ended_ns - run.began_ns >= seconds(TOOL_S)


def explained(program: str, folder: Path) -> str:
    command = [sys.executable, "-m", "controlplane", "explain", program, "--node", NODE, "--state-dir", str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
