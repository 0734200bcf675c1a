"""Programs with sub-agents: in the trace format, in what is drawn and mixed, and in that of AgentX's shape."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from controlplane.core.model.errors import ConfigError
from controlplane.lab.workload.families import all_of, by_parent, families, renamed
from controlplane.lab.workload.named import Wanted, named_workload
from controlplane.lab.workload.synthetic import synthesize
from controlplane.lab.workload.trace import ProgramTrace, read_trace
from controlplane.lab.workload.trees import AGENTX_LIKE, OUTPUT_TOKENS, PROMPT_TOKENS, TASK, TURNS, WITH_CHILDREN

TURN = {"input_tokens": 10, "output_tokens": 2, "tool": "Task", "tool_ms": 0.0}


def line(name: str, turns: int = 3, **more: Any) -> dict[str, Any]:
    return {"program_id": name, "turns": [TURN] * turns, **more}


def written(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


TREE = (
    line("a"),
    line("a/1", parent_id="a", spawn_turn=1, family_tokens=7),
    line("a/1/1", parent_id="a/1"),
    line("b"),
    line("b/1", parent_id="b", spawn_turn=0),
)


def test_sub_agents_are_read_with_their_parents(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "t.jsonl", *TREE))
    child = trace.programs[1]
    assert (child.parent_id, child.spawn_turn, child.family_tokens) == ("a", 1, 7)
    assert trace.programs[0].parent_id == ""
    assert [[each.program_id for each in family] for family in families(trace.programs)] == [
        ["a", "a/1", "a/1/1"],
        ["b", "b/1"],
    ]
    assert {name: sorted(turns) for name, turns in by_parent(trace.programs).items()} == {
        "a": [1],
        "a/1": [0],
        "b": [0],
    }


def test_the_first_programs_come_with_all_of_their_sub_agents(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", *TREE)
    for trace in (read_trace(path, max_programs=1), named_workload(str(path), Wanted(programs=1))):
        assert [each.program_id for each in trace.programs] == ["a", "a/1", "a/1/1"]


@pytest.mark.parametrize(
    ("orphan", "problem"),
    [
        (line("x", parent_id="nobody"), "parent_id: expected a valid program before it, got 'nobody'"),
        (line("x", parent_id="x"), "parent_id: expected a valid program before it, got 'x'"),
        (line("x", parent_id="a", spawn_turn=2), "expected a turn that 'a' goes on from, below 2, got 2"),
        (line("x", parent_id="a", spawn_turn=-1), "spawn_turn: Expected `int` >= 0"),
        (line("x", family_tokens="9"), "family_tokens: Expected `int | null`, got `str`"),
    ],
)
def test_a_sub_agent_that_nobody_waits_for_is_refused(tmp_path: Path, orphan: dict[str, Any], problem: str) -> None:
    trace = read_trace(written(tmp_path / "t.jsonl", line("a"), orphan))
    assert [each.program_id for each in trace.programs] == ["a"]
    assert trace.rejected[0].endswith(problem)


def test_a_family_stays_together_where_programs_are_drawn_and_named_anew(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", *TREE)
    mixed = named_workload(f"mix:{path}+synthetic:bfcl-v4", Wanted(programs=6))
    found = families(mixed.programs)
    assert len(found) == 6
    assert sum(len(family) > 1 for family in found) == 3
    assert len({each.program_id for each in mixed.programs}) == len(mixed.programs)
    names = [each.program_id for each in renamed(found[0], "again-{}")]
    assert names == [f"again-{each.program_id}" for each in found[0]]
    assert all_of(found) == mixed.programs


def test_a_family_with_one_context_that_is_too_long_is_left_out(tmp_path: Path) -> None:
    long = line("a/long", parent_id="a") | {"turns": [TURN | {"input_tokens": 900}]}
    path = written(tmp_path / "t.jsonl", line("a"), long, line("b"))
    kept = named_workload(str(path), Wanted(max_context_tokens=100))
    assert [each.program_id for each in kept.programs] == ["a", "b"], "the sub-agent's own line is no valid program"
    with pytest.raises(ConfigError, match="no program left"):
        named_workload("synthetic:agentx-like", Wanted(programs=3, max_context_tokens=5))


@pytest.fixture(scope="module")
def sessions() -> tuple[ProgramTrace, ...]:
    return synthesize(AGENTX_LIKE, programs=400, seed=3).programs


def test_agentx_like_sessions_have_the_published_shape(sessions: tuple[ProgramTrace, ...]) -> None:
    roots = [each for each in sessions if not each.parent_id]
    turns = [turn for each in roots for turn in each.turns]
    assert median(len(each.turns) for each in roots) == pytest.approx(TURNS, rel=0.1)
    assert median(turn.input_tokens for turn in turns) == pytest.approx(PROMPT_TOKENS, rel=0.15)
    assert median(turn.output_tokens for turn in turns) == pytest.approx(OUTPUT_TOKENS, rel=0.1)
    with_children = {each.parent_id for each in sessions if each.parent_id}
    assert len(with_children) / len(roots) == pytest.approx(WITH_CHILDREN, abs=0.07)


def test_each_call_of_a_session_sends_its_sub_agents_and_goes_on(sessions: tuple[ProgramTrace, ...]) -> None:
    known = {each.program_id: each for each in sessions}
    for each in sessions:
        if each.parent_id:
            parent = known[each.parent_id]
            assert parent.turns[each.spawn_turn].tool == TASK
            assert each.spawn_turn < len(parent.turns) - 1
            assert each.family_tokens < each.turns[0].input_tokens
    assert synthesize(AGENTX_LIKE, programs=5, seed=3).programs == sessions[: len(all_of(families(sessions)[:5]))]
