"""Placement by requests alone: the daemon's policies over what a router sees."""

import pytest

from controlplane.core.placement import PLACEMENT
from controlplane.core.policies import Choice
from controlplane.core.types import seconds
from controlplane.fleet import sessions
from controlplane.fleet.sessions import Pool, Sessions

TWO = {"a": Pool(total_tokens=10_000), "b": Pool(total_tokens=10_000)}


def run(placed: Sessions, name: str, tokens: int, at_s: float, on: str = "") -> str:
    """One request from its placement to its end, a second later."""
    replica = on or placed.place(name, tokens, TWO, seconds(at_s))[0]
    placed.begin(f"{name}{at_s}", name, replica, tokens, seconds(at_s))
    placed.end(f"{name}{at_s}", seconds(at_s + 1))
    return replica


def test_sessions_stay_and_new_ones_go_where_there_is_room() -> None:
    placed = Sessions(PLACEMENT["session"]())
    assert [run(placed, name, 2_000, at) for at, name in enumerate("xyzw")] == ["a", "b", "a", "b"]
    for turn in range(1, 4):
        assert [run(placed, name, 2_000 + 500 * turn, 10 * turn) for name in "wzyx"] == ["b", "a", "b", "a"]
    assert placed.place("x", 4_000, TWO, seconds(50)) == ("a", Choice.STAY)


def test_a_crowded_replica_is_left_when_computing_anew_is_cheaper() -> None:
    placed = Sessions(PLACEMENT["session"](), prefill_tokens_per_s=1e9)
    run(placed, "x", 1_000, 0, on="a")
    for index in range(9):
        placed.begin(f"r{index}", f"s{index}", "a", 2_000, seconds(2))
    assert placed.place("x", 1_100, TWO, seconds(3)) == ("b", Choice.REPREFILL)
    dear = Sessions(PLACEMENT["session"](), prefill_tokens_per_s=100)
    run(dear, "x", 1_000, 0, on="a")
    for index in range(4):  # it would wait a moment there, and its context still fits
        dear.begin(f"r{index}", f"s{index}", "a", 2_240, seconds(2))
    assert dear.place("x", 1_100, TWO, seconds(3)) == ("a", Choice.STAY)


def test_a_replica_that_left_takes_its_contexts_with_it() -> None:
    placed = Sessions(PLACEMENT["session"]())
    run(placed, "x", 1_000, 0, on="a")
    placed.lost("a")
    assert placed.home_of("x") == ""
    assert placed.place("x", 1_000, {"b": TWO["b"]}, seconds(2))[0] == "b"


def test_a_session_is_forgotten_after_its_time_and_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = Sessions(PLACEMENT["least_loaded"](), forget_s=60)
    run(placed, "x", 1_000, 0)
    placed.begin("long", "y", "b", 500, seconds(1))
    placed.place("z", 10, TWO, seconds(100))
    assert (placed.home_of("x"), placed.home_of("y")) == ("", "b")
    placed.begin("once", "anonymous", "a", 500, seconds(101), last=True)
    assert len(placed) == 2
    placed.end("once", seconds(102))
    placed.end("once", seconds(102))
    assert len(placed) == 1
    monkeypatch.setattr(sessions, "_MOST_SESSIONS", 3)
    for index in range(5):
        run(placed, f"s{index}", 10, 200 + index)
    assert len(placed) == 3


def test_free_room_that_a_replica_tells_counts() -> None:
    placed = Sessions(PLACEMENT["least_loaded"]())
    pools = {"a": Pool(total_tokens=10_000, free_tokens=10), "b": Pool(total_tokens=10_000, free_tokens=9_000)}
    assert placed.place("x", 100, pools, 0) == ("b", Choice.NEW)
