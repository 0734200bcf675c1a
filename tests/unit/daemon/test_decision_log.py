"""The decision log: what it holds, that it stays small, and the story that it tells."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.core_driver import Driver
from support.journalled import Journalled

from controlplane.core.model import events as ev
from controlplane.core.model.commands import Place
from controlplane.core.model.errors import ConfigError
from controlplane.core.model.tenancy import Tenancy, Tenant
from controlplane.core.model.types import seconds
from controlplane.operate.explain import lines, names, stories, story, ways
from controlplane.operate.tree import tree
from controlplane.wire.decisions import DecisionRecord, RunRecord, read_decisions


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Journalled]:
    made = Journalled(2, path=tmp_path / "node" / "decisions.jsonl")
    yield made
    made.log.close()


def run_one(logged: Journalled) -> None:
    """Four ask for two slots, and the first begins its turn."""
    driver = logged.driver
    driver.pool()
    driver.cpus(4)
    for name in "abcd":
        driver.ask(name)
    driver.wait(3)
    logged.tick()
    driver.submit("a")
    driver.wait(1)
    began = {"launch_delay_ns": seconds(0.5), "prompt_tokens": 1000, "cached_tokens": 640}
    logged.engine(ev.FirstToken, program_id="a", turn_id="a.1", **began)


def send_a_child(driver: Driver) -> None:
    """``root`` runs a turn, and its call sends ``child``."""
    driver.run_turn("root")
    driver.start_tool("root", tool="Task")
    driver.send(driver.tools(ev.ProgramArrived, program_id="child", parent_id="root"))


def test_a_decision_its_rule_its_numbers_who_else_and_what_came_of_it(logged: Journalled) -> None:
    run_one(logged)
    told = story(read_decisions(logged.path), "a")
    assert len(told) == 1
    decision = told[0].decision
    assert (decision.kind, decision.reason) == ("admit", "slot 1 of 2; 10 blocks")
    assert decision.rule == "preset fcfs, admission fixed, packing fcfs"
    assert (decision.numbers.limit, decision.numbers.active, decision.numbers.waiting) == (2, 2, 2)
    assert [(a.program_id, a.waited_ns) for a in decision.alternatives] == [
        ("b", seconds(3)),
        ("c", seconds(3)),
        ("d", seconds(3)),
    ]
    assert [(o.outcome, o.after_ns) for o in told[0].outcomes] == [
        ("its turn began after 0.50s in the engine; 640 of 1,000 prompt tokens were cached", seconds(1))
    ]
    text = "\n".join(lines(told))
    assert "admit for 15m00s: slot 1 of 2; 10 blocks" in text
    assert "instead of: b (10 blocks, waited 3.0s), c (10 blocks, waited 3.0s), d" in text
    assert "outcome after 1.0s on node/engine: its turn began" in text


def test_of_a_turn_whose_tokens_nobody_has_counted_yet_none_are_told(logged: Journalled) -> None:
    logged.driver.pool()
    logged.ask("a")
    logged.tick(1.0)
    logged.engine(ev.FirstToken, program_id="a", turn_id="a.1")
    told = story(read_decisions(logged.path), "a")
    assert [each.outcome for each in told[0].outcomes] == ["its turn began"]


def test_who_left_unserved_was_held_for_reasons_too(logged: Journalled) -> None:
    run_one(logged)  # two slots for four
    logged.ask("e")
    for _ in range(3):
        logged.tick(1)
    logged.driver.wait(1)
    abandoned = logged.driver.gate(ev.TurnAbandoned, program_id="e", turn_id="e.1", reason="client left")
    logged.driver.send(abandoned)
    commands = logged.driver.tick(0.5)
    logged.journal.event(abandoned, logged.driver.now_ns)  # it is written down behind the decision
    for command in commands:
        logged.told(command)
    told = story(read_decisions(logged.path), "e")
    assert [(each.decision.kind, each.decision.reason) for each in told] == [("left", "client left")]
    text = "\n".join(lines(told))
    assert "turns: e.1, waited for 4.5s: 4.0s all slots are taken" in text
    for _ in range(2):
        logged.tick(1)
    assert not logged.driver.controller.holds.left


def test_a_child_was_held_by_what_held_its_root(logged: Journalled) -> None:
    run_one(logged)
    logged.ask("e.child", parent_id="e")
    logged.tick(2)
    for name in "ab":
        logged.driver.end(name)
    logged.tick(1)
    for name in "cd":
        logged.driver.end(name)
    logged.tick(1)
    (admitted,) = [each.decision for each in story(read_decisions(logged.path), "e.child")]
    assert admitted.kind == "admit"
    assert [each.reason for each in admitted.held] == ["slots"]


def test_a_rejection_and_an_end_are_outcomes(logged: Journalled) -> None:
    run_one(logged)
    number = next(
        r.number for r in read_decisions(logged.path) if isinstance(r, DecisionRecord) and r.program_id == "b"
    )
    logged.engine(ev.CommandRejected, command_id=number, program_id="b", reason="no such thing")
    logged.end("b")
    outcomes = [o.outcome for each in story(read_decisions(logged.path), "b") for o in each.outcomes]
    assert outcomes == ["rejected by node/engine/1: no such thing"]
    assert names(read_decisions(logged.path))[-1] == "b"


def test_it_stays_within_its_size_and_keeps_the_latest(tmp_path: Path) -> None:
    logged = Journalled(2, path=tmp_path / "decisions.jsonl")
    for number in range(300):
        name = f"p{number}"
        logged.driver.ask(name)
        logged.tick(0.1)
        logged.driver.run_turn(name)
        logged.driver.end(name)
        logged.tick(0.1)
    logged.log.close()
    files = list(tmp_path.iterdir())
    assert len(files) == 4
    assert sum(file.stat().st_size for file in files) <= 40_000
    kept = names(read_decisions(logged.path))
    assert kept[-1] == "p299"
    assert "p0" not in kept
    numbers = [r.number for r in read_decisions(logged.path) if isinstance(r, DecisionRecord)]
    assert numbers == sorted(numbers)


def test_a_line_that_was_cut_is_left_out(logged: Journalled) -> None:
    run_one(logged)
    logged.log.close()
    whole = len(list(read_decisions(logged.path)))
    logged.path.write_bytes(logged.path.read_bytes()[:-20])
    assert len(list(read_decisions(logged.path))) == whole - 1


def test_no_log_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no decision log: has a daemon run here"):
        list(read_decisions(tmp_path / "decisions.jsonl"))
    with pytest.raises(ConfigError, match="cannot read the decision log: Is a directory"):
        list(read_decisions(tmp_path))


def test_a_disk_that_takes_nothing_costs_the_log_only(
    logged: Journalled, capsys: pytest.CaptureFixture[str]
) -> None:
    logged.path.mkdir()  # where the file should be
    run_one(logged)
    run_one(logged)
    assert "Traceback" not in capsys.readouterr().err


def test_two_daemons_tell_one_story_with_the_way_of_each_turn(tmp_path: Path) -> None:
    """The fleet's gate holds a turn for 3 s, then the node's for 1 s; the engine tells both."""
    waited_s = {"fleet": 3.0, "gpu7": 1.0}
    for node, wait_s in waited_s.items():
        logged = Journalled(2, path=tmp_path / node / "decisions.jsonl")
        logged.driver.pool()
        logged.ask("a")
        logged.tick(wait_s)
        logged.engine(ev.FirstToken, program_id="a", turn_id="a.1", prompt_tokens=1000)
        logged.log.close()
    logs = {node: read_decisions(tmp_path / node / "decisions.jsonl") for node in waited_s}
    told = stories(logs, "a")
    text = "\n".join(lines(told))
    assert [each.source for each in told] == ["fleet", "gpu7"]
    assert "  fleet  admit for" in text
    assert "    turns: a.1, waited for 3.0s" in text
    (way,) = ways(told)
    assert way.startswith("turn a.1: waited 3.0s at fleet, then 1.0s at gpu7; on node/engine its turn began after")


def test_a_placement_says_from_where_to_where_and_what_else_was_weighed(logged: Journalled) -> None:
    logged.driver.ask("a")
    why = "re_prefill: expected to cost 41 ms; weighed: stay 210 ms"
    place = Place(program_id="a", command_id=7, replica="n/engine-1", leaves="n/engine-0", reason=why)
    logged.told(place)
    told = story(read_decisions(logged.path), "a")
    (first, rule) = list(lines(told))[:2]
    assert first.endswith(f"place on n/engine-1, from n/engine-0: {why}")
    assert "placement session" in rule


def test_runs_of_a_tree_are_written_down_once_as_they_end_and_no_others(logged: Journalled) -> None:
    """A root takes along those of its sub-agents that have not ended."""
    driver = logged.driver
    driver.run_turn("alone")
    send_a_child(driver)
    driver.send(driver.tools(ev.ProgramArrived, program_id="left", parent_id="root"))
    for name in ("child", "left"):
        driver.run_turn(name)
    driver.wait(5)
    logged.end("child")
    driver.wait(6)
    for name in ("alone", "root", "left"):
        logged.end(name)
    logged.tick(1)
    runs = [each for each in read_decisions(logged.path) if isinstance(each, RunRecord)]
    assert [(each.program_id, each.parent_id, each.turns) for each in runs] == [
        ("child", "root", 1),
        ("root", "", 1),
        ("left", "root", 1),
    ]
    assert [(each.ended_ns - each.began_ns) / seconds(1) for each in runs] == [5, 11, 11]
    assert [each.account for each in runs] == [None] * 3


def test_a_root_that_goes_on_long_after_its_sub_agents_is_written_down(logged: Journalled) -> None:
    """Who has ended is forgotten after a while; the tree is shown from the log."""
    driver = logged.driver
    send_a_child(driver)
    driver.run_turn("child")
    driver.wait(5)
    logged.end("child")
    driver.submit("root", "root.2")
    logged.tick(120)
    assert "child" not in driver.controller.ledger.programs.by_name
    logged.end("root")
    found = tree(read_decisions(logged.path), "root")
    assert found is not None
    assert [each.run.program_id for each in found.children] == ["child"]


def test_a_turn_that_is_told_of_behind_its_programs_goodbye_counts(logged: Journalled) -> None:
    driver = logged.driver
    send_a_child(driver)
    driver.submit("child")
    driver.wait(5)
    logged.end("child")
    end = driver.engine(ev.TurnEnded, program_id="child", turn_id="child.1", prompt_tokens=1000, ok=True)
    logged.send(end)
    logged.end("root")
    runs = [each for each in read_decisions(logged.path) if isinstance(each, RunRecord)]
    assert [(each.program_id, each.turns) for each in runs] == [("child", 0), ("child", 1), ("root", 1)]
    found = tree(runs, "root")
    assert found is not None
    assert [(each.run.program_id, each.run.turns) for each in found.children] == [("child", 1)]


def test_a_tree_that_a_spent_budget_stopped_is_written_down_with_its_account(tmp_path: Path) -> None:
    budget = Tenancy(named={"default": Tenant(program_turns=3)})
    logged = Journalled(2, path=tmp_path / "decisions.jsonl", tenancy=budget)
    driver = logged.driver
    send_a_child(driver)
    for _ in range(2):
        driver.run_turn("child")
    logged.tick(1)
    logged.tick(1)
    records = list(read_decisions(logged.path))
    logged.log.close()
    (refused,) = (each for each in records if isinstance(each, DecisionRecord) and each.kind == "refuse")
    (root,) = (each for each in records if isinstance(each, RunRecord) and each.program_id == "root")
    assert root.account is not None
    assert (root.account.turns, root.account.most_turns, root.account.stopped) == (3, 3, refused.reason)
    found = tree(records, "root")
    assert found is not None
    assert [each.run.program_id for each in found.children] == ["child"]
