"""The tree of a program's sub-agents, and what its time was made of."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from support.decisions import decided, ran

from controlplane.operate.tree import PathSegment, critical_path, lines, tree, whose
from controlplane.wire.decisions import Account, Record

S = 10**9


def admitted(name: str, at_s: float, waited_s: float) -> Record:
    return decided(name, now_ns=round(at_s * S), waited_ns=round(waited_s * S))


def path(records: Sequence[Record], name: str = "root") -> list[tuple[str, float, float]]:
    found = tree(records, name)
    assert found is not None
    return [(each.program_id, each.began_ns / S, each.ended_ns / S) for each in critical_path(found)]


FORK_JOIN = (
    ran("root", "", 0, 100),
    ran("quick", "root", 10, 20),
    ran("slow", "root", 10, 50),
    ran("below", "slow", 20, 45),
    ran("later", "root", 60, 90),
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
    assert whose(FORK_JOIN, "below") == "a sub-agent of slow: 3 turns in 25.0s; its tree: penstock explain slow"
    assert whose(FORK_JOIN, "root") == whose(FORK_JOIN, "nobody") == ""


def test_names_that_are_used_again_are_of_the_last_run_alone() -> None:
    earlier = (ran("quick", "root", 1, 2), ran("root", "", 0, 5))
    moved = [
        ran(each.program_id, each.parent_id, each.began_ns / S + 9, each.ended_ns / S + 9) for each in FORK_JOIN
    ]
    found = tree([*earlier, *moved], "root")
    assert found is not None
    assert [(each.run.program_id, each.run.began_ns / S) for each in found.children] == [
        ("quick", 19),
        ("slow", 19),
        ("later", 69),
    ]
    longer = [*FORK_JOIN[:3], ran("slow", "root", 10, 58), *FORK_JOIN[3:]]  # it went on after an end was told
    assert path(longer)[3] == ("slow", 45, 58)


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


def test_it_says_for_how_long_who_is_on_the_path_was_held() -> None:
    holds = (
        admitted("root", 4, 4),  # its first turn
        admitted("slow", 17, 7),  # two of its turns at once: the time counts once
        admitted("slow", 19, 4),
        admitted("quick", 15, 5),  # not on the path
        admitted("root", 200, 50),  # of another run
    )
    found = tree([*holds, *FORK_JOIN], "root")
    assert found is not None
    assert [each.held_ns / S for each in critical_path(found)] == [4, 9, 0, 0, 0, 0, 0]
    shown = list(lines(found))
    assert shown[6] == "critical path: 30% root itself, the rest its sub-agents; 13% of it waited at the gate"
    assert shown[7] == "    at 0.0s for 10.0s (10%): root, waited at the gate for 4.0s"
    assert shown[8] == "    at 10.0s for 10.0s (10%): slow, waited at the gate for 9.0s"


def test_a_budget_is_told_with_what_was_had_of_it() -> None:
    stopped = Account(
        turns=12, kv_token_s=1500.4, most_turns=12, stopped="its run has spent its budget of 12 turns"
    )
    root = msgspec.structs.replace(FORK_JOIN[0], account=stopped)
    found = tree([root, *FORK_JOIN[1:]], "root")
    assert found is not None
    assert list(lines(found))[6] == (
        "budget: 12 of 12 turns and 1,500 KV token-seconds, its sub-agents' included; "
        "stopped: its run has spent its budget of 12 turns"
    )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 90), st.integers(1, 60)), max_size=8))
def test_a_critical_path_covers_the_whole_time_once(spans: list[tuple[int, int, int]]) -> None:
    records = [ran("0", "", 0, 100)]
    for number, (above, began, took) in enumerate(spans, start=1):
        records.append(ran(str(number), str(min(above, number - 1)), began, min(100, began + took)))
    found = tree(records, "0")
    if found is None:
        return
    stretches: list[PathSegment] = critical_path(found)
    assert stretches[0].began_ns == 0
    assert stretches[-1].ended_ns == 100 * S
    assert all(one.ended_ns == other.began_ns for one, other in pairwise(stretches))
    assert all(each.began_ns < each.ended_ns for each in stretches)
