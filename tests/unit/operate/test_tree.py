"""The tree of a program's sub-agents, and what its time was made of."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from controlplane.operate.tree import Stretch, critical_path, lines, tree
from controlplane.wire.decisions import RunRecord

S = 10**9


def run(name: str, parent: str, began_s: float, ended_s: float, turns: int = 3) -> RunRecord:
    return RunRecord(
        at="",
        program_id=name,
        parent_id=parent,
        began_ns=round(began_s * S),
        ended_ns=round(ended_s * S),
        turns=turns,
    )


def path(records: Sequence[RunRecord], name: str = "root") -> list[tuple[str, float, float]]:
    found = tree(records, name)
    assert found is not None
    return [(each.program_id, each.began_ns / S, each.ended_ns / S) for each in critical_path(found)]


FORK_JOIN = (
    run("root", "", 0, 100),
    run("quick", "root", 10, 20),
    run("slow", "root", 10, 50),
    run("below", "slow", 20, 45),
    run("later", "root", 60, 90),
)


def test_the_last_sub_agent_to_end_of_each_call_is_what_the_parent_waited_for() -> None:
    assert path(FORK_JOIN) == [
        ("root", 0, 10),
        ("slow", 10, 20),
        ("below", 20, 45),
        ("slow", 45, 50),
        ("root", 50, 60),
        ("later", 60, 90),
        ("root", 90, 100),
    ]
    assert path(FORK_JOIN, "slow") == [("slow", 10, 20), ("below", 20, 45), ("slow", 45, 50)]


def test_a_program_without_sub_agents_or_whose_end_is_not_known_has_no_tree() -> None:
    assert tree(FORK_JOIN, "quick") is None
    assert tree(FORK_JOIN[1:], "root") is None


def test_names_that_are_used_again_are_of_the_last_run_alone() -> None:
    earlier = (run("quick", "root", 1, 2), run("root", "", 0, 5))
    moved = [
        run(each.program_id, each.parent_id, each.began_ns / S + 9, each.ended_ns / S + 9) for each in FORK_JOIN
    ]
    found = tree([*earlier, *moved], "root")
    assert found is not None
    assert [(each.run.program_id, each.run.began_ns / S) for each in found.children] == [
        ("quick", 19),
        ("slow", 19),
        ("later", 69),
    ]


def test_it_is_shown_as_a_tree_and_as_a_path() -> None:
    found = tree(FORK_JOIN, "root")
    assert found is not None
    shown = list(lines(found))
    assert shown[0] == "tree: 5 programs in 1m40s; * is on the critical path"
    assert shown[1:6] == [
        "  * root: at 0.0s for 1m40s, 3 turns",
        "      quick: at 10.0s for 10.0s, 3 turns",
        "  *   slow: at 10.0s for 40.0s, 3 turns",
        "  *     below: at 20.0s for 25.0s, 3 turns",
        "  *   later: at 1m00s for 30.0s, 3 turns",
    ]
    assert shown[6] == "critical path: 30% root itself, the rest its sub-agents"
    assert shown[7:9] == ["    at 0.0s for 10.0s (10%): root", "    at 10.0s for 10.0s (10%): slow"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 90), st.integers(1, 60)), max_size=8))
def test_a_critical_path_covers_the_whole_time_once(spans: list[tuple[int, int, int]]) -> None:
    records = [run("0", "", 0, 100)]
    for number, (above, began, took) in enumerate(spans, start=1):
        records.append(run(str(number), str(min(above, number - 1)), began, min(100, began + took)))
    found = tree(records, "0")
    if found is None:
        return
    stretches: list[Stretch] = critical_path(found)
    assert stretches[0].began_ns == 0
    assert stretches[-1].ended_ns == 100 * S
    assert all(one.ended_ns == other.began_ns for one, other in pairwise(stretches))
    assert all(each.began_ns < each.ended_ns for each in stretches)
